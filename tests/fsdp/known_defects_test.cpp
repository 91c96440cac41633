// What has gone wrong in other implementations of fully sharded data
// parallelism, by their issues.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/nn/activation_checkpoint.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "fsdp/fully_sharded_data_parallel.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/fsdp/train_models.h"
#include "tests/support/run_ranks.h"
#include "tp/parallelize_module.h"

namespace weft::fsdp {
namespace {

using weft::test::RankContext;
using weft::test::run_ranks;

/// Equal linears, each a unit.
struct Deep : TestModel {
  explicit Deep(int64_t depth, int64_t width = 6) {
    for (int64_t i = 0; i < depth; ++i) {
      linears.push_back(register_module(
          "l" + std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  at::Tensor forward(const at::Tensor& x) override {
    auto h = x;
    for (auto& linear : linears) {
      h = at::tanh(dtensor::call(linear, h));
    }
    return h;
  }
  std::vector<torch::nn::Module*> units() override {
    std::vector<torch::nn::Module*> units;
    for (auto& linear : linears) {
      units.push_back(linear.get());
    }
    return units;
  }
  std::vector<torch::nn::Linear> linears;
};

/// Blocks that are units and have units inside.
struct Nested : TestModel {
  Nested()
      : first(register_module("first", Block(6))),
        second(register_module("second", Block(6))) {}
  at::Tensor forward(const at::Tensor& x) override {
    return dtensor::call(second, dtensor::call(first, x));
  }
  std::vector<torch::nn::Module*> units() override {
    return {
        first->up.get(),
        first->down.get(),
        first.get(),
        second->up.get(),
        second.get()};
  }
  Block first, second;
};

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : module.parameters()) {
    result.push_back(dtensor::full_tensor(parameter.grad()).clone());
  }
  return result;
}

/// The gradients of the mean of losses of all `inputs`, without parallelism.
template <class Model>
std::vector<at::Tensor> plain_gradients(const std::vector<at::Tensor>& inputs) {
  auto module = deferred<Model>();
  dtensor::materialize(*module, 1);
  for (const auto& input : inputs) {
    (module->forward(input).pow(2).mean() / static_cast<double>(inputs.size()))
        .backward();
  }
  return gradients_of(*module);
}

// pytorch 181832: the hook of an output was lost with its node.
TEST(FsdpKnownDefects, AnInplaceOpOnAViewedOutputLosesTheGatherOfBackward) {
  run_ranks(2, [](RankContext& self) {
    const auto expected =
        plain_gradients<Transformer>({tokens_of(0, 0), tokens_of(0, 1)});
    auto module = deferred<Transformer>();
    const auto model = shard(
        module,
        self.mesh({2}, {"dp_shard"}),
        {.reshard_after_forward = true},
        {.backward_prefetch = BackwardPrefetch::kNone});
    model->forward(tokens_of(0, self.rank)).pow(2).mean().backward();
    expect_close(gradients_of(*module), expected);
  });
}

// pytorch 154888.
TEST(FsdpKnownDefects, AShardGroupOfOneRankStopsSumsOverTheReplicas) {
  run_ranks(2, [](RankContext& self) {
    const auto expected =
        plain_gradients<Nested>({rows_of_numbers(0, 0), rows_of_numbers(0, 1)});
    auto module = deferred<Nested>();
    const auto model = shard(module, self.mesh({2, 1}, {"dp", "dp_shard"}));
    model->forward(rows_of_numbers(0, self.rank)).pow(2).mean().backward();
    expect_close(gradients_of(*module), expected);
  });
}

// pytorch pull requests 179443, 180889 and 140044.
TEST(FsdpKnownDefects, BuffersOfReductionsGrowWithTheDepthOrAlias) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
    std::vector<int64_t> peaks;
    for (const int64_t depth : {4, 12}) {
      auto module = deferred<Deep>(depth);
      const auto model = shard(module, mesh);
      for (int step = 0; step < 3; ++step) {
        model->forward(rows_of_numbers(step, self.rank)).mean().backward();
      }
      peaks.push_back(model->peak_message_bytes());
      std::set<const void*> memory;
      for (const auto& linear : module->linears) {
        const auto& grad =
            dtensor::dtensor_impl(linear->weight.grad())->local();
        EXPECT_TRUE(memory.insert(grad.const_data_ptr()).second);
      }
    }
    EXPECT_EQ(peaks.at(0), peaks.at(1));
  });
}

// pytorch 153354 and pull requests 171779 and 175406.
TEST(FsdpKnownDefects, RecomputationGathersTwiceOrLeavesUnitsUnsharded) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    const auto gathers = [&](bool recomputes, int64_t forward_prefetch) {
      auto module = deferred<Deep>(5);
      const auto model =
          shard(module, dp, {}, {.forward_prefetch = forward_prefetch});
      if (recomputes) {
        dtensor::apply_activation_checkpointing(
            *module, [](const std::string& name, torch::nn::Module& each) {
              return each.as<torch::nn::LinearImpl>() && !name.empty();
            });
      }
      int calls = 0;
      for (int step = 0; step < 2; ++step) {
        model->synchronize_parameters();
        dp.group(int64_t{0}).flight_recorder().reset();
        model->forward(rows_of_numbers(step, self.rank)).mean().backward();
        calls = 0;
        for (const auto& entry :
             dp.group(int64_t{0}).flight_recorder().entries()) {
          calls += entry.op == "all_gather" ? 1 : 0;
        }
        for (const auto& unit : model->units()) {
          EXPECT_FALSE(unit.is_unsharded) << unit.name;
        }
      }
      return calls;
    };
    for (const int64_t forward_prefetch : {0, 1, 3}) {
      EXPECT_EQ(gathers(true, forward_prefetch), 10);
      EXPECT_EQ(gathers(false, forward_prefetch), 10);
    }
  });
}

// pytorch 108190.
TEST(FsdpKnownDefects, TwoForwardsOfNestedUnitsMixUpTheOrderOfPrefetches) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp_shard"});
    const auto expected = plain_gradients<Nested>(
        {rows_of_numbers(0, 0),
         rows_of_numbers(0, 1),
         rows_of_numbers(1, 0),
         rows_of_numbers(1, 1)});
    for (const auto prefetch :
         {BackwardPrefetch::kNone,
          BackwardPrefetch::kPost,
          BackwardPrefetch::kPre}) {
      for (const bool reshards : {true, false}) {
        auto module = deferred<Nested>();
        const auto model = shard(
            module,
            dp,
            {.reshard_after_forward = reshards},
            {.forward_prefetch = 2, .backward_prefetch = prefetch});
        const auto loss = [&](int64_t step) {
          return model->forward(rows_of_numbers(step, self.rank))
                     .pow(2)
                     .mean() /
                 2;
        };
        const auto first = loss(0);
        const auto second = loss(1);
        (first + second).backward();
        expect_close(gradients_of(*module), expected);
      }
    }
  });
}

// pytorch 129206 and 136228, and pull request 194457.
TEST(FsdpKnownDefects, UnevenShardsBesideTensorParallelismLoseTheirOrder) {
  run_ranks(6, [](RankContext& self) {
    const auto mesh = self.mesh({3, 2}, {"dp_shard", "tp"});
    auto plain = deferred<Deep>(2, 17);
    dtensor::materialize(*plain, 1);
    auto module = deferred<Deep>(2, 17);
    tp::parallelize_module(
        *module,
        mesh["tp"],
        {{"l0", tp::ColwiseParallel()}, {"l1", tp::RowwiseParallel()}});
    const auto model = shard(module, mesh["dp_shard"]);
    const auto names = plain->named_parameters();
    for (const auto& [name, value] : model->state_dict()) {
      EXPECT_TRUE(at::equal(
          dtensor::full_tensor(value), dtensor::full_tensor(names[name])))
          << name;
    }
    const auto x = at::sin(at::arange(51, at::kFloat)).view({3, 17});
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::allclose(
        dtensor::full_tensor(model->forward(x)),
        dtensor::full_tensor(plain->forward(x)),
        1e-5,
        1e-6));
  });
}

} // namespace
} // namespace weft::fsdp
