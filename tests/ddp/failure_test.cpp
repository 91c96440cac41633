// What users get wrong, and peers that go away.
#include <atomic>
#include <future>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

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
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::HasSubstr;
using ::testing::Not;

/// Two layers of which one can be left out.
struct Optional : torch::nn::Module {
  Optional()
      : used(register_module("used", torch::nn::Linear(6, 6))),
        optional(register_module("optional", torch::nn::Linear(6, 6))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = used(x);
    return uses_all ? y + optional(x) : y;
  }
  bool uses_all = true;
  torch::nn::Linear used, optional;
};

struct Words : torch::nn::Module {
  Words()
      : embedding(register_module("embedding", torch::nn::Embedding(8, 6))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& tokens) { return embedding(tokens); }
  torch::nn::Embedding embedding;
};

/// Fails in forward where it is told to.
struct Fragile : torch::nn::Module {
  Fragile()
      : linear(register_module("linear", torch::nn::Linear(6, 6))),
        last(register_module("last", torch::nn::Linear(6, 6))) {
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (fails) {
      throw std::runtime_error("sample 7 is damaged");
    }
    auto y = linear(x);
    if (fails_in_backward) { // once the last layer has its gradients
      y.register_hook([](const at::Tensor&) -> at::Tensor {
        throw std::runtime_error("a gradient is odd");
      });
    }
    return last(y);
  }
  bool fails = false;
  bool fails_in_backward = false;
  torch::nn::Linear linear;
  torch::nn::Linear last;
};

// The process lives on, as a test or a notebook's does.
void tell_of_exception(int n, bool in_backward) {
  std::promise<void> over;
  const auto is_over = over.get_future().share();
  std::atomic<int> told = 0;
  run_ranks(
      n,
      [&](RankContext& self) {
        auto model = std::make_shared<Fragile>();
        DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
        const auto x = wave({2, 6}, 0.1);
        ddp(x).mean().backward();
        if (self.rank == n - 1) {
          (in_backward ? model->fails_in_backward : model->fails) = true;
          EXPECT_THROW(ddp(x).mean().backward(), std::runtime_error);
          if (n > 1) {
            is_over.wait();
          }
          return;
        }
        EXPECT_THAT(
            message_of_thrown<mesh::CommError>(
                [&] { ddp(x).mean().backward(); }),
            HasSubstr(
                "Rank " + std::to_string(n - 1) + " left the " +
                (in_backward ? "backward pass by an exception"
                             : "forward pass by an exception: sample 7 is "
                               "damaged")));
        if (++told == n - 1) {
          over.set_value();
        }
      },
      std::chrono::minutes(5));
}

class Failure : public ::testing::TestWithParam<int> {};

TEST_P(Failure, AnExceptionInOneRanksStepIsToldToTheOthers) {
  for (const bool in_backward : {false, true}) {
    tell_of_exception(GetParam(), in_backward);
  }
}

TEST_P(Failure, AMissingGradientIsNamedOnEveryRankAndTrainingCanGoOn) {
  for (const int failing_step : {0, 1, 2}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      const auto n = self.world_size;
      auto model = std::make_shared<Optional>();
      DistributedDataParallel ddp(
          model, self.mesh({n}, {"dp"}), {.bucket_cap_mb = 1e-6});
      const auto x = wave({2, 6}, 0.1);
      for (int step = 0; step < 4; ++step) {
        const bool fails = step == failing_step;
        model->zero_grad();
        model->uses_all = !fails || self.rank != n - 1;
        const auto run = [&] { ddp(x).pow(2).mean().backward(); };
        if (fails) {
          EXPECT_THAT(
              message_of_thrown<c10::ValueError>(run),
              HasSubstr(
                  "rank " + std::to_string(n - 1) +
                  ": optional.weight, optional.bias; of optional (Linear). "));
        } else {
          run();
          Optional alone;
          alone.forward(x).pow(2).mean().backward();
          expect_all_close(gradients_of(*model), gradients_of(alone));
        }
      }
    });
  }
}

TEST_P(Failure, AParameterThatIsReadyTwiceIsNamed) {
  // The weight is used outside of the nested backward too.
  struct Twice : torch::nn::Module {
    struct Nested : torch::autograd::Function<Nested> {
      static at::Tensor forward(
          torch::autograd::AutogradContext* context,
          const at::Tensor& x,
          Twice* self) {
        context->saved_data["self"] = reinterpret_cast<int64_t>(self);
        return x.clone();
      }
      static torch::autograd::variable_list backward(
          torch::autograd::AutogradContext* context,
          const torch::autograd::variable_list& gradients) {
        const at::AutoGradMode grad(true);
        auto* self =
            reinterpret_cast<Twice*>(context->saved_data["self"].toInt());
        self->weight.sum().backward();
        return {gradients[0], at::Tensor()};
      }
    };
    Twice() : weight(register_parameter("weight", wave({3}, 0.1))) {}
    at::Tensor forward(const at::Tensor& x) {
      return Nested::apply(x * weight, this);
    }
    at::Tensor weight;
  };
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Twice>();
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { ddp(wave({3}, 0.2)).sum().backward(); }),
        HasSubstr("became ready twice in one backward"));
  });
}

TEST_P(Failure, AnErrorInsideBackwardLeavesNothingBehind) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(
        model, self.mesh({n}, {"dp"}), {.bucket_cap_mb = 1e-6});
    const auto x = wave({2, 6}, 0.1);
    bool fails = false;
    model->a->weight.register_hook([&](const at::Tensor&) {
      if (fails) {
        throw std::runtime_error("the user's hook failed");
      }
    });
    Mlp alone;
    alone.forward(x).pow(2).mean().backward();
    for (int step = 0; step < 4; ++step) {
      model->zero_grad();
      fails = step % 2 == 1;
      const auto run = [&] { ddp(x).pow(2).mean().backward(); };
      if (fails) {
        EXPECT_THROW(run(), std::runtime_error);
      } else {
        run();
        expect_all_close(gradients_of(*model), gradients_of(alone));
      }
    }
  });
}

TEST_P(Failure, ALostPeerComesOutOfBackward) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto run = [&] { ddp(wave({2, 6}, 0.1)).sum().backward(); };
    run();
    if (self.rank == 0) {
      self.world.abort();
    }
    EXPECT_THROW(run(), mesh::CommError);
  });
}

TEST_P(Failure, AGraphOfGradientsIsRefused) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    const auto run = [&](bool create_graph) {
      ddp(wave({2, 6}, 0.1)).pow(2).sum().backward({}, {}, create_graph);
    };
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { run(true); }),
        HasSubstr("create_graph"));
    model->zero_grad();
    run(false);
  });
}

// Runs steps of which the last rank alone spoils every other one, and expects
// that rank's error there and the others' about it here.
template <class Step>
void expect_one_rank_spoils(
    RankContext& self,
    const Step& step,
    const std::string& own,
    const std::string& parameter) {
  const bool spoils = self.rank == self.world_size - 1;
  for (const bool spoilt : {true, false, true, false}) {
    if (!spoilt) {
      step(false);
      continue;
    }
    const auto text = message_of_thrown<c10::ValueError>([&] { step(spoils); });
    if (spoils) {
      EXPECT_THAT(text, HasSubstr(own));
    } else {
      EXPECT_THAT(text, HasSubstr("a gradient that cannot be reduced"));
      EXPECT_THAT(
          text,
          HasSubstr(
              "rank " + std::to_string(self.world_size - 1) + ": " +
              parameter));
    }
  }
}

TEST_P(Failure, AGraphOfGradientsOnOneRankFailsOnAll) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    const auto step = [&](bool spoils) {
      model->zero_grad();
      ddp(wave({2, 6}, 0.1)).pow(2).sum().backward({}, {}, spoils);
    };
    expect_one_rank_spoils(self, step, "create_graph", "a.weight");
  });
}

TEST_P(Failure, ASparseGradientOnOneRankFailsOnAll) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Words>();
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    const auto step = [&](bool spoils) {
      model->zero_grad();
      model->embedding->options.sparse(spoils);
      ddp(at::arange(4)).pow(2).sum().backward();
    };
    step(false);
    expect_one_rank_spoils(
        self, step, "was dense in the first step", "embedding.weight");
  });
}

TEST_P(Failure, ThawingAParameterIsRefused) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    model->b->bias.set_requires_grad(false);
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    const auto run = [&] { ddp(wave({2, 6}, 0.1)).sum().backward(); };
    // In the first backward and in a later one; on one rank or on all.
    for (const int first_thawed : {1, 0}) {
      const bool is_thawed = self.rank >= first_thawed;
      model->b->bias.set_requires_grad(is_thawed);
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(run),
          HasSubstr(
              is_thawed
                  ? "b.bias was frozen"
                  : "the module has new parameters since it was wrapped"));
      model->b->bias.set_requires_grad(false);
      run();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Failure,
    ::testing::Values(2, 3, 4),
    ::testing::PrintToStringParamName());

TEST(Construction, RefusesWhatCannotTrain) {
  run_ranks(2, [](RankContext& self) {
    const auto grid = self.mesh({2, 1}, {"dp", "tp"});
    const auto wrap = [&](std::shared_ptr<Mlp> model,
                          const mesh::DeviceMesh& mesh,
                          DistributedDataParallelOptions options = {}) {
      return message_of_thrown<c10::ValueError>(
          [&] { DistributedDataParallel ddp(model, mesh, options); });
    };
    auto model = std::make_shared<Mlp>();
    EXPECT_THAT(wrap(model, grid), HasSubstr("mesh[\"dp\"]"));
    EXPECT_THAT(wrap(nullptr, grid["dp"]), HasSubstr("null"));
    EXPECT_THAT(
        wrap(model, grid["dp"], {.bucket_cap_mb = 0.0}),
        HasSubstr("bucket_cap_mb: got 0, expected"));
    EXPECT_THAT(
        wrap(model, grid["dp"], {.reduce_op = mesh::ReduceOp::kMax}),
        HasSubstr("kAvg or kSum"));
    for (auto& parameter : model->parameters()) {
      parameter.set_requires_grad(false);
    }
    EXPECT_THAT(
        wrap(model, grid["dp"]),
        HasSubstr("none of the module's 6 parameters"));
  });
}

} // namespace
} // namespace weft::ddp
