// Training on parts of a batch equals training on the whole.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "tests/ddp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::expect_all_close;
using test::gradients_of;
using test::Mlp;
using test::part_of;
using test::RankContext;
using test::run_ranks;
using test::wave;

constexpr int64_t kMlpRows = 3;
constexpr double kMlpRate = 0.1;

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

/// One rank's losses and parameters after some steps on the whole batch.
struct Reference {
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;
};

Reference train_alone(
    const at::Tensor& x,
    const at::Tensor& y,
    int steps,
    at::ScalarType dtype = at::kDouble) {
  Mlp model(dtype);
  torch::optim::SGD optimizer(model.parameters(), kMlpRate);
  Reference result;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of(model.forward(x), y);
    loss.backward();
    optimizer.step();
    result.losses.push_back(loss.item<double>());
  }
  result.gradients = gradients_of(model);
  result.parameters = model.parameters();
  return result;
}

class Reduction : public ::testing::TestWithParam<int> {};

TEST_P(Reduction, TrainsAsOneRankOnTheWholeBatch) {
  for (const bool as_view : {true, false}) {
    for (const bool set_to_none : {true, false}) {
      run_ranks(GetParam(), [&](RankContext& self) {
        constexpr int kSteps = 5;
        const auto n = self.world_size;
        const auto x = wave({n * kMlpRows, 6}, 0.1);
        const auto y = wave({n * kMlpRows, 3}, 0.2);
        const auto mesh = self.mesh({n}, {"dp"});
        auto model = std::make_shared<Mlp>();
        DistributedDataParallel ddp(
            model,
            mesh,
            {.bucket_cap_mb = 1e-4, .gradient_as_bucket_view = as_view});
        torch::optim::SGD optimizer(model->parameters(), kMlpRate);
        std::vector<double> losses;
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad(set_to_none);
          auto loss = loss_of(
              ddp(part_of(x, self.rank, kMlpRows)),
              part_of(y, self.rank, kMlpRows));
          loss.backward();
          optimizer.step();
          auto mean = loss.detach().clone();
          mesh.group("dp").all_reduce(mean, mesh::ReduceOp::kAvg).wait();
          losses.push_back(mean.item<double>());
        }
        const auto expected = train_alone(x, y, kSteps);
        for (int step = 0; step < kSteps; ++step) {
          EXPECT_NEAR(losses[step], expected.losses[step], 1e-12);
        }
        expect_all_close(gradients_of(*model), expected.gradients);
        expect_all_close(model->parameters(), expected.parameters);
      });
    }
  }
}

TEST_P(Reduction, SumsUnevenPartsOfALossThatIsDividedByTheGlobalCount) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto rows = n * (n + 1) / 2;
    const auto x = wave({rows, 6}, 0.1);
    const auto begin = self.rank * (self.rank + 1) / 2;
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(
        model, self.mesh({n}, {"dp"}), {.reduce_op = mesh::ReduceOp::kSum});
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      const auto part = x.narrow(0, begin, self.rank + 1);
      (ddp(part).pow(2).sum() / static_cast<double>(rows)).backward();
    }
    Mlp alone;
    (alone.forward(x).pow(2).sum() / static_cast<double>(rows)).backward();
    expect_all_close(gradients_of(*model), gradients_of(alone));
  });
}

TEST_P(Reduction, ReducesBfloat16) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kMlpRows, 6}, 0.1, at::kBFloat16);
    auto model = std::make_shared<Mlp>(at::kBFloat16);
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      ddp(part_of(x, self.rank, kMlpRows)).sum().backward();
    }
    Mlp alone;
    alone.forward(x.to(at::kDouble)).sum().backward();
    auto expected = gradients_of(alone);
    for (auto& gradient : expected) {
      gradient = gradient / static_cast<double>(n);
    }
    expect_all_close(gradients_of(*model), expected, 0.15);
    EXPECT_EQ(model->a->weight.grad().scalar_type(), at::kBFloat16);
  });
}

/// Parameters of two dtypes, one without elements, one complex.
struct Mixed : torch::nn::Module {
  Mixed() {
    wide = register_parameter("wide", wave({4}, 0.5));
    narrow = register_parameter("narrow", wave({4}, 0.6, at::kFloat));
    empty = register_parameter("empty", at::zeros({0, 3}, at::kFloat));
    scalar = register_parameter("scalar", wave({}, 0.7));
    complex = register_parameter(
        "complex", at::complex(wave({2}, 0.8), wave({2}, 0.9)));
  }
  at::Tensor forward(const at::Tensor& x) {
    return (x * wide * scalar).sum() + (x * narrow).sum() + empty.sum() +
           at::real(complex * x.narrow(0, 0, 2)).sum();
  }
  at::Tensor wide, narrow, empty, scalar, complex;
};

TEST_P(Reduction, KeepsDtypesApartAndAllowsEmptyParameters) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mixed>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto x_of = [](int64_t rank) {
      return wave({4}, static_cast<double>(rank));
    };
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      ddp(x_of(self.rank)).backward();
    }
    Mixed alone;
    for (int64_t rank = 0; rank < n; ++rank) {
      (alone.forward(x_of(rank)) / static_cast<double>(n)).backward();
    }
    EXPECT_EQ(model->empty.grad().sizes(), at::IntArrayRef({0, 3}));
    expect_all_close({model->wide.grad()}, {alone.wide.grad()});
    expect_all_close({model->scalar.grad()}, {alone.scalar.grad()});
    expect_all_close({model->narrow.grad()}, {alone.narrow.grad()}, 1e-6);
    expect_all_close(
        {at::view_as_real(model->complex.grad())},
        {at::view_as_real(alone.complex.grad())});
    EXPECT_EQ(ddp.bucket_names().size(), n > 1 ? 3 : 0);
  });
}

/// One weight registered at two places and used at both.
struct TiedWeights : torch::nn::Module {
  struct Product : torch::nn::Module {
    explicit Product(const at::Tensor& w)
        : weight(register_parameter("weight", w)) {}
    at::Tensor weight;
  };
  TiedWeights()
      : in(register_module("in", std::make_shared<Product>(wave({4, 4}, 0.4)))),
        out(register_module("out", std::make_shared<Product>(in->weight))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::tanh(x.matmul(in->weight)).matmul(out->weight);
  }
  std::shared_ptr<Product> in, out;
};

TEST_P(Reduction, TreatsATiedParameterAsOne) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kMlpRows, 4}, 0.1);
    auto model = std::make_shared<TiedWeights>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    EXPECT_EQ(ddp.bucket_names().size(), n > 1 ? 1 : 0);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      ddp(part_of(x, self.rank, kMlpRows)).pow(2).mean().backward();
    }
    TiedWeights alone;
    alone.forward(x).pow(2).mean().backward();
    expect_all_close({model->in->weight.grad()}, {alone.in->weight.grad()});
  });
}

TEST_P(Reduction, LeavesFrozenParametersAlone) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kMlpRows, 6}, 0.1);
    auto model = std::make_shared<Mlp>();
    model->b->weight.set_requires_grad(false);
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      ddp(part_of(x, self.rank, kMlpRows)).pow(2).mean().backward();
    }
    Mlp alone;
    alone.forward(x).pow(2).mean().backward();
    EXPECT_FALSE(model->b->weight.grad().defined());
    expect_all_close(
        {model->a->weight.grad(), model->b->bias.grad()},
        {alone.a->weight.grad(), alone.b->bias.grad()});
  });
}

TEST_P(Reduction, TakesAModuleHolderAndReachesItsForward) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    torch::nn::Sequential model(
        torch::nn::Linear(6, 4), torch::nn::Tanh(), torch::nn::Linear(4, 2));
    model->to(at::kDouble);
    test::fill_parameters(*model);
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto x = wave({n * kMlpRows, 6}, 0.1);
    ddp.forward(part_of(x, self.rank, kMlpRows)).pow(2).mean().backward();
    const auto parallel = gradients_of(ddp.module());
    ddp.module().zero_grad();
    auto own = parallel;
    for (auto& gradient : own) {
      gradient = gradient.clone();
    }
    const auto guard = ddp.no_sync();
    model->forward(x).pow(2).mean().backward();
    expect_all_close(own, gradients_of(*model));
  });
}

/// Returns several tensors, and computes half of itself in a nested backward,
/// as re-entrant checkpointing does.
struct Nested : torch::nn::Module {
  struct Checkpoint : torch::autograd::Function<Checkpoint> {
    static at::Tensor forward(
        torch::autograd::AutogradContext* context,
        const at::Tensor& x,
        Nested* self) {
      context->save_for_backward({x});
      context->saved_data["self"] = reinterpret_cast<int64_t>(self);
      return at::tanh(self->inner(x));
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext* context,
        const torch::autograd::variable_list& gradients) {
      auto* self =
          reinterpret_cast<Nested*>(context->saved_data["self"].toInt());
      const at::AutoGradMode grad(true);
      auto x = context->get_saved_variables()[0].detach().requires_grad_();
      at::tanh(self->inner(x)).backward(gradients[0]);
      return {x.grad(), at::Tensor()};
    }
  };
  Nested()
      : outer(register_module("outer", torch::nn::Linear(6, 6))),
        inner(register_module("inner", torch::nn::Linear(6, 6))),
        last(register_module("last", torch::nn::Linear(6, 6))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const auto hidden = Checkpoint::apply(outer(x), this);
    return {last(hidden), hidden};
  }
  torch::nn::Linear outer, inner, last;
};

TEST_P(Reduction, EndsWithTheOutermostBackward) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kMlpRows, 6}, 0.1);
    const auto loss = [](const auto& outputs) {
      return std::get<0>(outputs).pow(2).mean() +
             std::get<1>(outputs).pow(2).mean();
    };
    auto model = std::make_shared<Nested>();
    DistributedDataParallel ddp(
        model, self.mesh({n}, {"dp"}), {.bucket_cap_mb = 1e-4});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      loss(ddp(part_of(x, self.rank, kMlpRows))).backward();
    }
    Nested alone;
    loss(alone.forward(x)).backward();
    expect_all_close(gradients_of(*model), gradients_of(alone));
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Reduction,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::ddp
