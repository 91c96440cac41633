// What users do and should not, or may and rarely do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "ddp/distributed_data_parallel.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::expect_all_close;
using test::gradients_of;
using test::message_of_thrown;
using test::Mlp;
using test::part_of;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Misuse : public ::testing::TestWithParam<int> {};

std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<at::Tensor> all) {
  return std::make_unique<torch::optim::SGD>(std::move(all), 0.1);
}

/// One rank's parameters after some steps on the whole batch.
std::vector<at::Tensor> trained_alone(const at::Tensor& x, int steps) {
  Mlp alone;
  torch::optim::SGD optimizer(alone.parameters(), 0.1);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    alone.forward(x).pow(2).mean().backward();
    optimizer.step();
  }
  return alone.parameters();
}

TEST_P(Misuse, OptimizersInBackwardThatCameFirstAreTakenOver) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto mesh = self.mesh({n}, {"dp"});
    const auto x = wave({n * 2, 6}, 0.1);
    auto model = std::make_shared<Mlp>();
    const auto optimizers =
        apply_optimizer_in_backward(sgd, model->parameters());
    DistributedDataParallel ddp(model, mesh);
    for (int step = 0; step < 3; ++step) {
      ddp(part_of(x, self.rank, 2)).pow(2).mean().backward();
      for (const auto& gradient : gradients_of(*model)) {
        EXPECT_FALSE(gradient.defined());
      }
    }
    expect_all_close(model->parameters(), trained_alone(x, 3));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { apply_optimizer_in_backward(sgd, model->parameters()); }),
        HasSubstr("Use register_fused_optim()"));
  });
}

TEST_P(Misuse, FusedOptimizersMayComeInParts) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * 2, 6}, 0.1);
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto all = model->parameters();
    ddp.register_fused_optim(
        sgd, std::vector<at::Tensor>(all.begin(), all.begin() + 2));
    ddp.register_fused_optim(
        sgd, std::vector<at::Tensor>(all.begin() + 2, all.end()));
    for (int step = 0; step < 3; ++step) {
      ddp(part_of(x, self.rank, 2)).pow(2).mean().backward();
    }
    expect_all_close(model->parameters(), trained_alone(x, 3));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { ddp.register_fused_optim(sgd); }),
        HasSubstr("already has an optimizer that steps in backward"));
  });
}

TEST_P(Misuse, ASecondWrapperIsRefusedWhileTheFirstListens) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    auto model = std::make_shared<Mlp>();
    auto first = std::make_unique<DistributedDataParallel<Mlp>>(model, mesh);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { DistributedDataParallel second(model, mesh); }),
        AllOf(HasSubstr("a.weight"), HasSubstr("another Distributed")));
    first->remove_autograd_hooks();
    { const DistributedDataParallel second(model, mesh); }
    first.reset();
    const DistributedDataParallel third(model, mesh);
  });
}

TEST_P(Misuse, AnEmbeddingWithMaxNormIsRefused) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    torch::nn::Sequential model(
        torch::nn::Linear(2, 2),
        torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).max_norm(1)));
    torch::nn::EmbeddingBag bag(
        torch::nn::EmbeddingBagOptions(4, 2).max_norm(1));
    const auto wrap = [&](const auto& module) {
      return message_of_thrown<c10::ValueError>(
          [&] { DistributedDataParallel(module.ptr(), mesh); });
    };
    EXPECT_THAT(
        wrap(model),
        AllOf(
            HasSubstr("\"1\" is an Embedding with max_norm"),
            HasSubstr("Build it without")));
    EXPECT_THAT(wrap(bag), HasSubstr("the module is an Embedding"));
  });
}

TEST_P(Misuse, OptionsThatDifferAreNamedOnAllRanks) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>([&] {
          DistributedDataParallel ddp(
              std::make_shared<Mlp>(),
              mesh,
              {.bucket_cap_mb = self.rank == 1 ? 1.0 : 2.0});
        }),
        AllOf(
            HasSubstr("option bucket_cap_mb = 2"),
            HasSubstr("option bucket_cap_mb = 1")));
  });
}

TEST_P(Misuse, AHookThatFailsOnceLeavesNothingBehind) {
  for (const bool everywhere : {true, false}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      const auto n = self.world_size;
      const auto x = wave({n * 2, 6}, 0.1);
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(
          model, self.mesh({n}, {"dp"}), {.bucket_cap_mb = 1e-6});
      bool fails = false;
      const auto inner = data_parallel::allreduce_hook();
      ddp.register_comm_hook(data_parallel::make_comm_hook(
          "failing", true, [&](const data_parallel::GradBucket& bucket) {
            // It may ask DDP for what it knows.
            EXPECT_FALSE(ddp.bucket_names().empty());
            return inner->run(bucket).then(
                [&, index = bucket.index](const at::Tensor& value) {
                  TORCH_CHECK(!fails || index != 1, "the user's hook failed");
                  return value;
                });
          }));
      Mlp alone;
      alone.forward(x).pow(2).mean().backward();
      for (int step = 0; step < 4; ++step) {
        model->zero_grad();
        const bool is_bad = step == 2;
        fails = is_bad && (everywhere || self.rank == 0);
        const auto run = [&] {
          ddp(part_of(x, self.rank, 2)).pow(2).mean().backward();
        };
        if (is_bad) {
          EXPECT_THAT(
              message_of_thrown<c10::Error>(run),
              HasSubstr(fails ? "the user's hook failed" : "comm hook failed"));
        } else {
          run();
          expect_all_close(gradients_of(*model), gradients_of(alone));
        }
      }
    });
  }
}

/// A second output, and a loss that forward() does not return.
struct TwoHeads : torch::nn::Module {
  TwoHeads()
      : a(register_module("a", torch::nn::Linear(6, 4))),
        b(register_module("b", torch::nn::Linear(6, 4))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  std::tuple<at::Tensor, std::optional<at::Tensor>> forward(
      const at::Tensor& x) {
    auxiliary = b(x).pow(2).mean();
    return {a(x), keeps_second ? std::optional(b(x)) : std::nullopt};
  }
  torch::nn::Linear a, b;
  at::Tensor auxiliary;
  bool keeps_second = true;
};

TEST_P(Misuse, OutputsMayBeUsedOneBackwardAfterTheOther) {
  for (const bool skips : {false, true}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      const auto n = self.world_size;
      const auto x = wave({n * 2, 6}, 0.1);
      auto model = std::make_shared<TwoHeads>();
      DistributedDataParallel ddp(
          model,
          self.mesh({n}, {"dp"}),
          {.bucket_cap_mb = 1e-6,
           .find_unused_parameters = true,
           .skip_all_reduce_unused_params = skips});
      TwoHeads alone;
      const auto outputs = alone.forward(x);
      std::get<0>(outputs).pow(2).mean().backward();
      std::get<1>(outputs)->pow(2).mean().backward();
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        const auto [y, z] = ddp(part_of(x, self.rank, 2));
        y.pow(2).mean().backward();
        z->pow(2).mean().backward();
        expect_all_close(gradients_of(*model), gradients_of(alone));
      }
    });
  }
}

TEST_P(Misuse, AStaticGraphIsNotSearched) {
  for (const bool as_view : {false, true}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      const auto n = self.world_size;
      const auto x = wave({n * 2, 6}, 0.1);
      auto model = std::make_shared<TwoHeads>();
      model->keeps_second = false;
      DistributedDataParallel ddp(
          model,
          self.mesh({n}, {"dp"}),
          {.bucket_cap_mb = 1e-6,
           .gradient_as_bucket_view = as_view,
           .find_unused_parameters = true,
           .static_graph = true,
           .skip_all_reduce_unused_params = true});
      TwoHeads alone;
      const auto y = std::get<0>(alone.forward(x));
      (y.pow(2).mean() + alone.auxiliary).backward();
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        const auto output = std::get<0>(ddp(part_of(x, self.rank, 2)));
        (output.pow(2).mean() + model->auxiliary).backward();
        expect_all_close(gradients_of(*model), gradients_of(alone));
      }
    });
  }
}

TEST_P(Misuse, ALossThatReachesNoParameterOnOneRank) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mlp>();
    const auto x = wave({2, 6}, 0.1);
    const auto run = [&](auto& ddp) {
      const auto output = ddp(x);
      auto weight = at::ones({}, at::kDouble).requires_grad_();
      // The last rank's loss depends on no parameter, but on an output.
      auto loss = self.rank + 1 < n ? output.sum() : (output * 0).sum();
      if (self.rank + 1 == n) {
        loss = (x.detach().requires_grad_() * weight).sum() +
               at::where(at::zeros_like(output).to(at::kBool), output, 0).sum();
      }
      loss.backward();
    };
    DistributedDataParallel ddp(
        model, self.mesh({n}, {"dp"}), {.find_unused_parameters = true});
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      run(ddp);
      EXPECT_TRUE(model->a->weight.grad().defined());
    }
  });
}

TEST_P(Misuse, MixedPrecisionLetsGradientsAndValuesBeChangedAfterForward) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mlp>(at::kFloat);
    MixedPrecision precision{.param_dtype = at::kBFloat16};
    DistributedDataParallel ddp(
        model, self.mesh({n}, {"dp"}), {.mixed_precision = precision});
    const auto x = wave({2, 6}, 0.1, at::kFloat);
    at::Tensor first;
    for (int step = 0; step < 3; ++step) {
      const auto loss = ddp(x).pow(2).mean();
      model->zero_grad(step % 2 == 0);
      loss.backward();
      first = first.defined() ? first : model->a->weight.grad().clone();
      EXPECT_TRUE(at::equal(model->a->weight.grad(), first)) << step;
    }
    // Values that are written between two forwards stay.
    (void)ddp(x);
    {
      const at::NoGradGuard no_grad;
      model->a->weight.fill_(0.25);
      (void)ddp(x);
    }
    ddp(x).sum().backward();
    EXPECT_TRUE(at::equal(
        model->a->weight.detach(), at::full({8, 6}, 0.25, at::kFloat)));
    EXPECT_EQ(model->a->weight.grad().scalar_type(), at::kFloat);
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Misuse,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::ddp
