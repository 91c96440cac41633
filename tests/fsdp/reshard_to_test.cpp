// Units whose backward gathers parameters from few ranks.
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/fully_sharded_data_parallel.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/train_models.h"
#include "tests/support/run_ranks.h"

namespace weft::fsdp {
namespace {

using weft::test::RankContext;
using weft::test::run_ranks;

Outcome trained(
    const ModelCase& each,
    const mesh::DeviceMesh& mesh,
    int64_t rank,
    const FullyShardOptions& options,
    const ScheduleOptions& schedule = {}) {
  const auto module = each.make_deferred();
  const auto model = shard(module, mesh, options, schedule);
  auto optimizer = adamw(*module);
  Outcome outcome;
  outcome.losses = train(*model, optimizer, each, rank, /*micro_batches=*/2);
  outcome.weights = whole_weights(*module);
  return outcome;
}

int gathers(const mesh::Communicator& group) {
  int calls = 0;
  for (const auto& entry : group.flight_recorder().entries()) {
    calls += entry.op == "all_gather" ? 1 : 0;
  }
  return calls;
}

class ReshardTo : public testing::TestWithParam<ModelCase> {};

TEST_P(ReshardTo, ChangesNoBits) {
  for (const auto& [ranks, size] : {std::pair(4, 2), {6, 2}, {6, 3}}) {
    run_ranks(ranks, [&, ranks = ranks, size = size](RankContext& self) {
      const auto mesh = self.mesh({ranks}, {"dp_shard"});
      for (const auto param_dtype :
           {std::optional<c10::ScalarType>(), std::optional(at::kBFloat16)}) {
        FullyShardOptions options{
            .mixed_precision = {.param_dtype = param_dtype}};
        const auto expected = trained(GetParam(), mesh, self.rank, options);
        options.reshard_to = size;
        for (const auto prefetch :
             {BackwardPrefetch::kNone,
              BackwardPrefetch::kPost,
              BackwardPrefetch::kPre}) {
          expect_same_bits(
              trained(
                  GetParam(),
                  mesh,
                  self.rank,
                  options,
                  {.backward_prefetch = prefetch}),
              expected);
        }
      }
    });
  }
}

TEST_P(ReshardTo, WorksWithReplicasOfTheShards) {
  run_ranks(8, [](RankContext& self) {
    const auto mesh = self.mesh({2, 4}, {"dp", "dp_shard"});
    expect_same_bits(
        trained(GetParam(), mesh, self.rank, {.reshard_to = 2}),
        trained(GetParam(), mesh, self.rank, {}));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ReshardTo,
    testing::ValuesIn(model_cases()),
    [](const auto& info) { return info.param.name; });

TEST(ReshardToGroups, BackwardGathersNothingFromAllRanks) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({4}, {"dp_shard"});
    const auto each = model_cases().at(1);
    const auto module = each.make_deferred();
    const auto model = shard(module, mesh, {.reshard_to = 2});
    model->synchronize_parameters();
    const auto all = mesh.group(int64_t{0});
    const int before = gathers(all);
    auto output = (*model)(each.input(0, self.rank));
    EXPECT_EQ(gathers(all) - before, 5);
    output.sum().backward();
    EXPECT_EQ(gathers(all) - before, 5);
    // What was kept is given back, and a pass without gradients keeps nothing.
    const auto held = model->held_bytes();
    const at::NoGradGuard no_grad;
    (*model)(each.input(1, self.rank));
    EXPECT_LE(model->held_bytes(), held);
  });
}

// What a rank keeps is of the values that forward used.
TEST(ReshardToGroups, NewValuesAreSeenByForwardAndFullParameters) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({4}, {"dp_shard"});
    const auto each = model_cases().at(1);
    const auto module = each.make_deferred();
    const auto model = shard(module, mesh, {.reshard_to = 2});
    const auto other = each.make_deferred();
    const auto expected = shard(other, mesh);
    const auto input = each.input(0, self.rank);
    (*model)(input); // Without a backward.
    {
      const at::NoGradGuard no_grad;
      for (auto* changed : {module.get(), other.get()}) {
        for (auto& parameter : changed->parameters()) {
          parameter.mul_(1.5);
        }
      }
      const FullParameters all(*model);
      const FullParameters others(*expected);
      for (size_t i = 0; i < module->parameters().size(); ++i) {
        EXPECT_TRUE(at::equal(
            dtensor::full_tensor(module->parameters()[i]),
            dtensor::full_tensor(other->parameters()[i])));
      }
    }
    // Two forwards before two backwards.
    for (auto* sharded : {model.get(), expected.get()}) {
      const auto first = (*sharded)(input);
      const auto second = (*sharded)(each.input(1, self.rank));
      second.sum().backward();
      first.sum().backward();
    }
    for (size_t i = 0; i < module->parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(
          dtensor::full_tensor(module->parameters()[i].grad()),
          dtensor::full_tensor(other->parameters()[i].grad())))
          << i;
    }
  });
}

TEST(ReshardToGroups, AreRefusedIfTheyDoNotDivideTheShards) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({4}, {"dp_shard"});
    const auto refusal = [&](const FullyShardOptions& options) {
      try {
        const auto module = model_cases().at(1).make_deferred();
        fully_shard(*module->units().front(), mesh, options);
      } catch (const c10::ValueError& error) {
        return std::string(error.what_without_backtrace());
      }
      return std::string("accepted");
    };
    for (const int64_t size : {-1, 1, 3, 4, 8}) {
      EXPECT_THAT(
          refusal({.reshard_to = size}),
          testing::HasSubstr("expected a divisor of the 4 ranks"))
          << size;
    }
    EXPECT_THAT(
        refusal({.reshard_after_forward = false, .reshard_to = 2}),
        testing::HasSubstr("reshard_after_forward is false"));
    EXPECT_EQ(refusal({.reshard_to = 2}), "accepted");
  });
}

} // namespace
} // namespace weft::fsdp
