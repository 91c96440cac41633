// Fully sharded training is DistributedDataParallel's, bitwise over shared
// memory, and holds no more than it should.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "fsdp/fully_sharded_data_parallel.h"
#include "mesh/communicator/flight_recorder.h"
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

std::string case_name(const ::testing::TestParamInfo<ModelCase>& info) {
  return info.param.name;
}

struct Variant {
  std::string name;
  std::optional<bool> reshard;
  ScheduleOptions schedule = {};
  mesh::ReduceOp reduce_op = mesh::ReduceOp::kAvg;
  bool inner_units = true;
};

std::vector<Variant> variants(mesh::ReduceOp reduce_op) {
  std::vector<Variant> all = {
      {"default", {}},
      {"reshard always", true},
      {"reshard never", false},
      {"one unit", {}, {}, mesh::ReduceOp::kAvg, false},
      {"sum", {}, {}, mesh::ReduceOp::kSum},
      {"nothing ahead", {}, {0, BackwardPrefetch::kNone, 0}},
      {"all ahead", {}, {3, BackwardPrefetch::kPost, 3}}};
  std::erase_if(
      all, [&](const auto& each) { return each.reduce_op != reduce_op; });
  return all;
}

Outcome train_ddp(
    const ModelCase& each,
    const mesh::DeviceMesh& dp,
    mesh::ReduceOp reduce_op,
    int micro_batches) {
  const auto module = each.make_deferred();
  dtensor::materialize(*module, 1);
  ddp::DistributedDataParallel<TestModel> model(
      module, dp, {.reduce_op = reduce_op});
  auto optimizer = adamw(*module);
  auto losses = train(model, optimizer, each, dp.rank(), micro_batches);
  return {std::move(losses), whole_weights(*module)};
}

Outcome train_fsdp(
    const ModelCase& each,
    const mesh::DeviceMesh& dp,
    const Variant& variant,
    int micro_batches) {
  const auto module = each.make_deferred();
  const FullyShardOptions options{
      .reshard_after_forward = variant.reshard, .reduce_op = variant.reduce_op};
  if (variant.inner_units) {
    for (auto* inner : module->units()) {
      fully_shard(*inner, dp, options);
    }
  }
  FullyShardedDataParallel<TestModel> model(
      module, dp, options, variant.schedule);
  dtensor::materialize(*module, 1);
  auto optimizer = adamw(*module);
  auto losses = train(model, optimizer, each, dp.rank(), micro_batches);
  for (const auto& unit : model.units()) {
    EXPECT_FALSE(unit.is_unsharded) << unit.name;
  }
  return {std::move(losses), whole_weights(*module)};
}

class FullySharded : public ::testing::TestWithParam<ModelCase> {};

TEST_P(FullySharded, TrainsAsDistributedDataParallel) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](RankContext& self) {
      const auto dp = self.mesh({ranks}, {"dp_shard"});
      for (const int micro_batches : {1, 2}) {
        for (const auto reduce_op :
             {mesh::ReduceOp::kAvg, mesh::ReduceOp::kSum}) {
          const auto expected =
              train_ddp(GetParam(), dp, reduce_op, micro_batches);
          for (const auto& variant : variants(reduce_op)) {
            SCOPED_TRACE(c10::str(
                variant.name,
                ", ",
                ranks,
                " ranks, ",
                micro_batches,
                " batches"));
            expect_same_bits(
                train_fsdp(GetParam(), dp, variant, micro_batches), expected);
          }
        }
      }
    });
  }
}

// Rows that tp shards too, by the chunk rule or by given sizes, and columns.
TEST(FullyShardedWithTp, TrainsAsDistributedDataParallel) {
  const auto chain = model_cases().at(0);
  for (const auto& [shards, parts] : {std::pair(2, 2), {3, 2}, {2, 3}}) {
    run_ranks(shards * parts, [&, n = shards, m = parts](RankContext& self) {
      const auto mesh = self.mesh({n, m}, {"dp_shard", "tp"});
      const int64_t row = mesh.coordinate("dp_shard");
      const tp::ParallelizePlan plan{
          {"l0", tp::ColwiseParallel()},
          {"l1", tp::RowwiseParallel()},
          {"l4", tp::RowwiseParallel()}};
      std::vector<int64_t> rows(m, 4);
      rows.back() = 17 - 4 * (m - 1);
      const auto make = [&] {
        auto module = chain.make_deferred();
        for (const auto* name : {"l3.weight", "l3.bias"}) {
          dtensor::set_placements(
              module->named_parameters()[name],
              mesh["tp"],
              {dtensor::Shard(0, rows)});
        }
        tp::parallelize_module(*module, mesh["tp"], plan);
        return module;
      };
      const auto plain = make();
      ddp::DistributedDataParallel<TestModel> replicas(plain, mesh["dp_shard"]);
      dtensor::materialize(*plain, 1);
      auto first = adamw(*plain);
      const auto module = make();
      for (auto* unit : module->units()) {
        fully_shard(*unit, mesh["dp_shard"]);
      }
      FullyShardedDataParallel<TestModel> sharded(module, mesh["dp_shard"]);
      dtensor::materialize(*module, 1);
      auto second = adamw(*module);
      const Outcome expected{
          train(replicas, first, chain, row, 2), whole_weights(*plain)};
      const Outcome found{
          train(sharded, second, chain, row, 2), whole_weights(*module)};
      expect_same_bits(found, expected);
    });
  }
}

// Sums over the shards and then over their replicas are added in another order
// than sums over all ranks, unless one of the two mesh dims has one rank.
void expect_hybrid(
    const Outcome& found,
    const Outcome& expected,
    const mesh::DeviceMesh& mesh) {
  if (mesh.size("dp") == 1 || mesh.size("dp_shard") == 1) {
    expect_same_bits(found, expected);
    return;
  }
  for (size_t i = 0; i < found.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-6);
  }
  for (size_t i = 0; i < found.weights.size(); ++i) {
    EXPECT_TRUE(at::allclose(found.weights[i], expected.weights[i], 1e-5, 1e-5))
        << "parameter " << i;
  }
}

TEST_P(FullySharded, HybridTrainsAsDistributedDataParallel) {
  for (const auto& [replicas, shards] :
       {std::pair(2, 2), {2, 3}, {3, 1}, {1, 3}}) {
    run_ranks(replicas * shards, [&, r = replicas, s = shards](auto& self) {
      const auto mesh = self.mesh({r, s}, {"dp", "dp_shard"});
      for (const int micro_batches : {1, 2}) {
        for (const auto reduce_op :
             {mesh::ReduceOp::kAvg, mesh::ReduceOp::kSum}) {
          const auto expected =
              train_ddp(GetParam(), mesh.flatten(), reduce_op, micro_batches);
          for (const auto& variant : variants(reduce_op)) {
            SCOPED_TRACE(c10::str(
                variant.name,
                ", ",
                r,
                "x",
                s,
                ", ",
                micro_batches,
                " batches"));
            expect_hybrid(
                train_fsdp(GetParam(), mesh, variant, micro_batches),
                expected,
                mesh);
          }
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    FullySharded,
    ::testing::ValuesIn(model_cases()),
    case_name);

} // namespace
} // namespace weft::fsdp
