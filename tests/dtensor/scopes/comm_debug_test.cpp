// What a program communicates, and why.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dtensor/debug/explain.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/world.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::random;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using weft::test::RankContext;
using weft::test::run_ranks;
using Counts = std::map<std::string, int64_t>;

mesh::DeviceMesh imagined(
    std::vector<int64_t> shape,
    std::vector<std::string> names) {
  int64_t ranks = 1;
  for (const int64_t size : shape) {
    ranks *= size;
  }
  return mesh::DeviceMesh::create(
      mesh::World::fake(0, ranks), std::move(shape), std::move(names));
}

at::Tensor on(
    const mesh::DeviceMesh& mesh,
    c10::IntArrayRef local,
    const Placements& placements) {
  return from_local(torch::zeros(local), mesh, placements);
}

TEST(CommDebugModeTest, CountsWhatItsThreadLaunches) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const auto x = distributed(random({4, 6}, 1), mesh, {Shard(0)});
    const CommDebugMode mode;
    EXPECT_EQ(mode.get_total_counts(), 0);
    full_tensor(x);
    redistribute(x, {Shard(1)});
    EXPECT_EQ(
        mode.get_comm_counts(), (Counts{{"all_gather", 1}, {"all_to_all", 1}}));
    EXPECT_EQ(mode.get_total_counts(), 2);
    const auto record = mode.records().at(0);
    EXPECT_EQ(record.ranks, 2);
    EXPECT_EQ(record.bytes, 4 * 6 * 8);
    EXPECT_FALSE(record.is_implicit);
    EXPECT_FALSE(record.is_backward);
    EXPECT_EQ(record.tensor, "[4, 6] Double");
    EXPECT_EQ(record.from, "[S(0)]");
    EXPECT_EQ(record.to, "[R]");
  });
}

TEST(CommDebugModeTest, EndsWithItsScopeAndNests) {
  const auto mesh = imagined({2}, {"tp"});
  const auto x = on(mesh, {2, 3}, {Shard(0)});
  const CommDebugMode outer({.mesh = mesh});
  {
    const CommDebugMode inner({.mesh = mesh});
    full_tensor(x);
    EXPECT_EQ(inner.get_total_counts(), 1);
  }
  full_tensor(x);
  EXPECT_EQ(outer.get_total_counts(), 2);
  EXPECT_EQ(outer.records().at(0).mesh_dim, "tp");
}

TEST(CommDebugModeTest, TellsMeshDimsApart) {
  const auto mesh = imagined({3, 2}, {"dp", "tp"});
  const auto x = on(mesh, {2, 2}, {Shard(0), Shard(1)});
  const CommDebugMode mode({.mesh = mesh});
  redistribute(x, {Shard(0), Replicate()});
  redistribute(x, {Replicate(), Shard(1)});
  const auto records = mode.records();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].mesh_dim, "tp");
  EXPECT_EQ(records[0].ranks, 2);
  EXPECT_EQ(records[1].mesh_dim, "dp");
  EXPECT_EQ(records[1].ranks, 3);
}

TEST(CommDebugModeTest, NamesTheGroupOfAllDims) {
  const auto mesh = imagined({2, 2}, {"dp", "tp"});
  const auto x = on(mesh, {1, 2}, {Shard(0), Shard(0)});
  const CommDebugMode mode({.mesh = mesh});
  full_tensor(x);
  const auto records = mode.records();
  ASSERT_EQ(records.size(), 1U) << "one gather over both";
  EXPECT_EQ(records[0].mesh_dim, "dp_tp");
  EXPECT_EQ(records[0].ranks, 4);
}

TEST(CommDebugModeTest, MarksBackwardAndImplicitCollectives) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    auto x = distributed(random({4, 6}, 1).requires_grad_(), mesh, {Shard(0)});
    auto w = distributed(random({5, 6}, 2).requires_grad_(), mesh, {Shard(0)});
    const CommDebugMode mode({.mesh = mesh});
    const auto y = torch::linear(x, w);
    const auto forward = mode.records();
    ASSERT_EQ(forward.size(), 1U);
    EXPECT_TRUE(forward[0].is_implicit);
    EXPECT_FALSE(forward[0].is_backward);
    EXPECT_EQ(forward[0].op, "all_gather");
    y.sum().backward();
    const auto all = mode.records();
    ASSERT_GT(all.size(), 1U);
    bool scattered = false;
    for (const auto& record : all) {
      if (record.op == "reduce_scatter") {
        scattered = true;
        EXPECT_TRUE(record.is_backward);
        EXPECT_TRUE(record.is_implicit) << "as its forward was";
      }
    }
    EXPECT_TRUE(scattered);
  });
}

TEST(CommDebugModeTest, ArgumentsOfOneOpTravelTogether) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const auto pending = [&](std::vector<int64_t> sizes, uint64_t seed) {
      return distributed(random(sizes, seed), mesh, {Partial()});
    };
    const auto atan2 = [](const at::Tensor& a, const at::Tensor& b) {
      return a.atan2(b);
    };
    const auto messages = [&](std::vector<int64_t> sizes) {
      at::Tensor y;
      Counts counts;
      {
        const CommDebugMode mode;
        y = atan2(pending(sizes, 1), pending(sizes, 2));
        counts = mode.get_comm_counts();
      }
      dtensor::test::expect_close(
          full_tensor(y),
          atan2(random(sizes, 1), random(sizes, 2)),
          1e-12,
          "atan2");
      return counts;
    };
    EXPECT_EQ(messages({4, 4}), (Counts{{"reduce_scatter_uneven", 1}}));
    // Copying these would take longer than another message.
    EXPECT_EQ(messages({512, 512}), (Counts{{"reduce_scatter", 2}}));
    // Of two dtypes.
    const CommDebugMode mode;
    at::atan2(pending({4}, 1), pending({4}, 2).to(at::kFloat));
    EXPECT_EQ(mode.get_comm_counts(), (Counts{{"reduce_scatter", 2}}));
  });
}

TEST(CommDebugModeTest, CountsAreTheLedgers) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    auto x = distributed(
        random({5, 6}, 1).requires_grad_(), mesh, {Shard(0), Shard(1)});
    int64_t before = 0;
    int64_t bytes_before = 0;
    const auto ledger_counts = [&](int64_t& calls, int64_t& bytes) {
      // Steps of both mesh dims go through the group of all.
      for (auto group :
           {mesh.group("dp"), mesh.group("tp"), self.world.group()}) {
        for (const auto& [op, count] : group.flight_recorder().counts()) {
          calls += count;
        }
        bytes += group.flight_recorder().total_bytes();
      }
    };
    ledger_counts(before, bytes_before);
    const CommDebugMode mode;
    (x.mm(x.t()).exp() + x.sum()).sum().backward();
    int64_t after = -before;
    int64_t bytes_after = -bytes_before;
    ledger_counts(after, bytes_after);
    int64_t bytes = 0;
    for (const auto& record : mode.records()) {
      bytes += record.bytes;
    }
    EXPECT_EQ(mode.get_total_counts(), after);
    EXPECT_EQ(bytes, bytes_after);
  });
}

struct BlockImpl : torch::nn::Module {
  BlockImpl() : torch::nn::Module("Block") {}
  at::Tensor forward(const at::Tensor& x) {
    return redistribute(x, {Replicate()}).relu();
  }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", Block());
    second = register_module("second", Block());
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = call(first, x);
    return y + call(second, x * 2);
  }
  Block first{nullptr};
  Block second{nullptr};
};
TORCH_MODULE(Net);

TEST(CommDebugModeTest, NamesTheModules) {
  const auto mesh = imagined({2}, {"tp"});
  Net net;
  auto x = on(mesh, {2, 3}, {Shard(0)}).requires_grad_();
  for (int i = 0; i < 2; ++i) { // hooks are put once
    const CommDebugMode mode({.mesh = mesh, .module = net.get()});
    const auto y = call(net, x).sum();
    const auto records = mode.records();
    ASSERT_EQ(records.size(), 2U);
    EXPECT_EQ(records[0].module, "first");
    EXPECT_EQ(records[1].module, "second");
    EXPECT_THAT(
        mode.generate_comm_debug_tracing_table(),
        HasSubstr("second\n  all_gather"));
  }
}

TEST(CommDebugModeTest, DumpsOneLineOfJson) {
  const auto mesh = imagined({2}, {"tp"});
  const CommDebugMode mode({.mesh = mesh});
  full_tensor(on(mesh, {2, 3}, {Shard(0)}));
  const auto text = mode.generate_json_dump();
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json.at("total"), 1);
  EXPECT_EQ(json.at("counts").at("all_gather"), 1);
  EXPECT_EQ(json.at("collectives").at(0).at("from"), "[S(0)]");
}

TEST(ExplainTest, SaysWhatAnOpMovesAndWhatWouldBeCheaper) {
  const auto mesh = imagined({4}, {"tp"});
  const auto x = on(mesh, {2, 8}, {Shard(0)});
  const auto y = on(mesh, {8, 2}, {Shard(1)});
  const auto explanation = explain(mesh, [&] { (void)(x + y); });
  ASSERT_FALSE(explanation.entries.empty());
  const auto& entry = explanation.entries[0];
  EXPECT_TRUE(entry.is_implicit);
  EXPECT_EQ(entry.name, "aten::add");
  EXPECT_GT(entry.estimated_us, 0);
  EXPECT_THAT(entry.cheaper, HasSubstr("0 bytes to each rank instead of"));
  EXPECT_EQ(
      explanation.implicit_count(),
      static_cast<int64_t>(explanation.entries.size()));
  EXPECT_THAT(explanation.to_string(), HasSubstr("over tp of 4"));
  EXPECT_THAT(explanation.to_string(), HasSubstr("implicit, by aten::add"));
  EXPECT_EQ(
      nlohmann::json::parse(explanation.to_json()).at("bytes"),
      explanation.bytes());
}

TEST(ExplainTest, FindsNothingCheaperThanNothing) {
  const auto mesh = imagined({4}, {"tp"});
  const auto x = on(mesh, {2, 8}, {Shard(0)});
  const auto explanation = explain(mesh, [&] { (void)(x + x).exp(); });
  EXPECT_THAT(explanation.entries, IsEmpty());
  EXPECT_THAT(explanation.to_string(), HasSubstr("0 collectives"));
}

TEST(ExplainTest, PricesWithTheLinksThatAreGiven) {
  const auto mesh = imagined({4}, {"tp"});
  const auto x = on(mesh, {2, 8}, {Shard(0)});
  const auto explained = explain(
      mesh, [&] { full_tensor(x); }, {.link_cost = [](std::string_view) {
        return mesh::LinkCost{.latency_us = 7, .bandwidth_gb_s = 1e12};
      }});
  EXPECT_NEAR(explained.estimated_us(), 14, 1e-3) << "two levels of a tree";
  EXPECT_EQ(explained.implicit_count(), 0);
}

} // namespace
} // namespace weft::dtensor
