// Ranks that run out of inputs at different steps train as one rank does.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data_parallel/join/join.h"
#include "dtensor/nn/clip_grad.h"
#include "fsdp/joinable_optimizer.h"
#include "tests/fsdp/train_models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tp/parallelize_module.h"

namespace weft::fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

at::Tensor loss_of(const at::Tensor& output) {
  return output.pow(2).mean();
}

torch::optim::SGD sgd(const torch::nn::Module& module) {
  return torch::optim::SGD(
      module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Trains one rank on the batches of all, each step with those of the ranks
/// that have one.
std::vector<at::Tensor> train_alone(
    const ModelCase& each,
    const std::vector<int64_t>& batches,
    bool divides_by_initial,
    int64_t micro_batches = 1,
    double max_norm = 0) {
  const auto module = each.make_deferred();
  dtensor::materialize(*module, 1);
  auto optimizer = sgd(*module);
  const auto steps = *std::ranges::max_element(batches) / micro_batches;
  for (int64_t step = 0; step < steps; ++step) {
    int64_t active = 0;
    for (const auto count : batches) {
      active += count > step * micro_batches ? 1 : 0;
    }
    const auto divisor =
        divides_by_initial ? static_cast<int64_t>(batches.size()) : active;
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      for (int64_t i = 0; i < micro_batches; ++i) {
        const auto index = step * micro_batches + i;
        if (index < batches[rank]) {
          (loss_of(
               module->forward(each.input(index, static_cast<int64_t>(rank)))) /
           static_cast<double>(divisor))
              .backward();
        }
      }
    }
    if (max_norm > 0) {
      dtensor::clip_grad_norm_(module->parameters(), max_norm);
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return whole_weights(*module);
}

class FsdpJoinModels : public ::testing::TestWithParam<ModelCase> {};

// A forward without a backward leaves the outermost unit unsharded. With 4
// ranks and reshard_to, it leaves a part of the others, too.
TEST_P(FsdpJoinModels, UnevenInputsTrainAsOneRank) {
  for (const auto& batches : std::vector<std::vector<int64_t>>{
           {4, 6, 8}, {3, 0, 1}, {2, 2, 2}, {5}, {3, 0, 1, 2}}) {
    for (const bool divides_by_initial : {true, false}) {
      const auto expected =
          train_alone(GetParam(), batches, divides_by_initial);
      const auto ranks = static_cast<int>(batches.size());
      run_ranks(ranks, [&](RankContext& self) {
        const auto module = GetParam().make_deferred();
        const auto model = shard(
            module,
            self.mesh({ranks}, {"dp_shard"}),
            {.reshard_to = ranks == 4 ? 2 : 0});
        (*model)(GetParam().input(9, self.rank));
        auto optimizer = sgd(*module);
        JoinableOptimizer joined(optimizer, *model);
        data_parallel::Join join(
            {model.get(), &joined},
            {},
            {{"divide_by_initial_world_size", divides_by_initial}});
        join.run([&] {
          for (int64_t i = 0; i < batches[self.rank]; ++i) {
            loss_of((*model)(GetParam().input(i, self.rank))).backward();
            optimizer.step();
            optimizer.zero_grad();
          }
        });
        SCOPED_TRACE(c10::str(batches, ", ", divides_by_initial));
        expect_close(whole_weights(*module), expected);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    FsdpJoinModels,
    ::testing::ValuesIn(model_cases()),
    [](const auto& info) { return info.param.name; });

// Evaluation, accumulation of both kinds, clipping, and replicas of the shards.
// Micro-batches that a rank accumulated before it ran out of inputs count.
TEST(FsdpJoin, RanksWithoutInputsFollowAccumulationAndEvaluation) {
  const auto each = model_cases().back();
  const std::vector<int64_t> batches = {3, 6, 1, 2};
  for (const bool sums_shards : {false, true}) {
    const auto expected = train_alone(each, batches, true, 2, 0.5);
    run_ranks(4, [&](RankContext& self) {
      const auto mesh = self.mesh({2, 2}, {"dp", "dp_shard"});
      const auto module = each.make_deferred();
      const auto model = shard(module, mesh);
      auto optimizer = sgd(*module);
      const auto step = [&] {
        dtensor::clip_grad_norm_(module->parameters(), 0.5);
        optimizer.step();
        optimizer.zero_grad();
      };
      JoinableOptimizer joined(step, *model);
      data_parallel::Join join({model.get(), &joined});
      join.run([&] {
        for (int64_t i = 0; i < batches[self.rank]; ++i) {
          const auto pass = [&] {
            loss_of((*model)(each.input(i, self.rank))).backward();
          };
          if (i % 2 == 0) {
            const auto guard =
                sums_shards ? model->no_all_reduce() : model->no_sync();
            pass();
          } else {
            pass();
            step();
          }
          const at::NoGradGuard no_grad;
          (*model)(each.input(100, self.rank));
        }
      });
      expect_close(whole_weights(*module), expected);
    });
  }
}

TEST(FsdpJoin, RanksOfAModelLeaveTogether) {
  const auto chain = model_cases().front();
  const std::vector<int64_t> batches = {2, 5};
  const auto expected = train_alone(chain, batches, true);
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp_shard", "tp"});
    const auto row = mesh.coordinate("dp_shard");
    const auto module = chain.make_deferred();
    tp::parallelize_module(
        *module,
        mesh["tp"],
        {{"l0", tp::ColwiseParallel()}, {"l1", tp::RowwiseParallel()}});
    const auto model = shard(module, mesh["dp_shard"]);
    auto optimizer = sgd(*module);
    JoinableOptimizer joined(optimizer, *model);
    data_parallel::Join join({model.get(), &joined});
    join.run([&] {
      for (int64_t i = 0; i < batches[row]; ++i) {
        loss_of((*model)(chain.input(i, row))).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    expect_close(whole_weights(*module), expected);
  });
}

TEST(FsdpJoin, ABodyThatFailsEndsAllRanks) {
  const auto chain = model_cases().at(1);
  run_ranks(3, [&](RankContext& self) {
    const auto module = chain.make_deferred();
    const auto model = shard(module, self.mesh({3}, {"dp_shard"}));
    auto optimizer = sgd(*module);
    JoinableOptimizer joined(optimizer, *model);
    data_parallel::Join join({model.get(), &joined});
    const auto body = [&] {
      for (int64_t i = 0; i < 2 * self.rank; ++i) {
        if (self.rank == 2 && i == 3) {
          throw std::runtime_error("the loader failed");
        }
        loss_of((*model)(chain.input(i, self.rank))).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    if (self.rank == 2) {
      EXPECT_THROW(join.run(body), std::runtime_error);
    } else {
      EXPECT_THAT(
          message_of_thrown<data_parallel::JoinError>([&] { join.run(body); }),
          AllOf(HasSubstr("rank 2 failed"), HasSubstr("the loader failed")));
    }
  });
}

TEST(FsdpJoin, RefusesWhatRanksWithoutInputsCannotFollow) {
  const auto chain = model_cases().at(1);
  run_ranks(2, [&](RankContext& self) {
    const auto module = chain.make_deferred();
    const auto model = shard(module, self.mesh({2}, {"dp_shard"}));
    auto optimizer = sgd(*module);
    JoinableOptimizer joined(optimizer, *model);
    const auto refusal =
        [&](const std::vector<data_parallel::Joinable*>& joinables,
            const std::function<void()>& body,
            const data_parallel::JoinKwargs& kwargs = {}) {
          return message_of_thrown<c10::ValueError>([&] {
            data_parallel::Join join(joinables, {}, kwargs);
            join.run(body);
          });
        };
    EXPECT_THAT(
        refusal(
            {model.get()},
            [&] { loss_of((*model)(chain.input(0, self.rank))).backward(); }),
        HasSubstr("Pass a weft::fsdp::JoinableOptimizer after the model"));
    EXPECT_THAT(
        refusal({&joined, model.get()}, [] {}),
        HasSubstr("Pass the wrapped model first"));
    EXPECT_THAT(
        refusal({model.get(), &joined}, [] {}, {{"weight_by_samples", true}}),
        HasSubstr("weight_by_samples is not supported"));
    EXPECT_THAT(
        refusal(
            {model.get(), &joined},
            [&] { model->unshard(*module->units().front()); }),
        HasSubstr("outside the model's forward and backward"));
    EXPECT_THAT(
        refusal(
            {model.get(), &joined}, [&] { const FullParameters all(*model); }),
        HasSubstr("FullParameters cannot be used inside a Join"));
    // It still trains.
    loss_of((*model)(chain.input(0, self.rank))).backward();
    optimizer.step();
  });
}

} // namespace
} // namespace weft::fsdp
