// Grouped-query attention with any numbers of heads and ranks equals one rank,
// and moves neither the query nor its heads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/random/random_state.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_line;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using ::testing::IsEmpty;
using weft::test::RankContext;
using weft::test::run_ranks;
using HeadTensors = std::vector<at::Tensor>;

struct Heads {
  int64_t query, kv, ranks;
};

const std::vector<Heads>& all_heads() {
  static const std::vector<Heads> kHeads{
      {4, 2, 4},
      {4, 1, 2},
      {6, 2, 3},
      {8, 2, 4},
      {6, 1, 3},
      {12, 4, 3},
      {6, 3, 2},
      {6, 3, 4},
      {4, 2, 3}};
  return kHeads;
}

struct AttentionOptions {
  double dropout_p = 0;
  bool is_causal = false;
  bool masked = false;
};

constexpr int64_t kSamples = 2;
constexpr int64_t kKeys = 5;

HeadTensors inputs_of(const Heads& heads, bool masked) {
  HeadTensors inputs{
      random({kSamples, heads.query, kKeys, 4}, 1),
      random({kSamples, heads.kv, kKeys, 4}, 2),
      random({kSamples, heads.kv, kKeys, 4}, 3)};
  if (masked) {
    inputs.push_back(random({kSamples, heads.query, kKeys, kKeys}, 4));
  }
  return inputs;
}

// Output and gradients, whole.
HeadTensors attend(
    const Heads& heads,
    const AttentionOptions& options,
    const mesh::DeviceMesh& mesh,
    const Placements& query,
    const Placements& kv) {
  manual_seed(mesh, 2);
  HeadTensors leaves;
  for (const auto& input : inputs_of(heads, options.masked)) {
    const bool is_kv = leaves.size() == 1 || leaves.size() == 2;
    leaves.push_back(
        distributed(input.clone().requires_grad_(), mesh, is_kv ? kv : query));
  }
  const auto output = full_tensor(at::scaled_dot_product_attention(
      leaves[0],
      leaves[1],
      leaves[2],
      options.masked ? std::optional(leaves[3]) : std::nullopt,
      options.dropout_p,
      options.is_causal,
      /*scale=*/std::nullopt,
      /*enable_gqa=*/true));
  (output * random(output.sizes(), 77)).sum().backward();
  HeadTensors results{output.detach()};
  for (const auto& leaf : leaves) {
    results.push_back(full_tensor(leaf.grad()));
  }
  return results;
}

void expect_equal(const HeadTensors& actual, const HeadTensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    expect_close(
        actual[i],
        expected[i],
        1e-10,
        i == 0 ? "output" : "gradient of input " + std::to_string(i - 1));
  }
}

class GroupedHeads : public ::testing::TestWithParam<AttentionOptions> {};

TEST_P(GroupedHeads, EqualOneRank) {
  for (const auto& heads : all_heads()) {
    const auto expected =
        attend(heads, GetParam(), fake_line(0, 1), {kR}, {kR});
    run_ranks(static_cast<int>(heads.ranks), [&](RankContext& self) {
      SCOPED_TRACE(
          std::to_string(heads.query) + " heads, " + std::to_string(heads.kv) +
          " groups on " + std::to_string(heads.ranks));
      const auto mesh = line(self);
      const auto check = [&](const Placement& query, const Placement& kv) {
        SCOPED_TRACE(query.to_string() + " " + kv.to_string());
        expect_equal(attend(heads, GetParam(), mesh, {query}, {kv}), expected);
      };
      check(Shard(1), kR);
      check(Shard(1), Shard(1));
      check(StridedShard(1, 2), kR);
      check(Shard(2), kR);
      check(Shard(0), Shard(0));
      std::vector<int64_t> sizes(self.world_size, 1);
      sizes.back() = heads.query - self.world_size + 1;
      check(Shard(1, sizes), kR);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms,
    GroupedHeads,
    ::testing::Values(
        AttentionOptions{},
        AttentionOptions{.is_causal = true},
        AttentionOptions{.masked = true},
        AttentionOptions{.dropout_p = 0.3, .is_causal = true}),
    [](const auto& info) {
      const auto& options = info.param;
      return std::string(
          options.masked          ? "Masked"
          : options.dropout_p > 0 ? "Dropout"
          : options.is_causal     ? "Causal"
                                  : "Plain");
    });

TEST(GroupedHeads, OnTwoMeshDims) {
  const Heads heads{4, 2, 4};
  const AttentionOptions options{.is_causal = true};
  const auto expected = attend(heads, options, fake_line(0, 1), {kR}, {kR});
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (const auto& query : std::vector<Placements>{
             {Shard(0), Shard(1)},
             {Shard(1), Shard(1)},
             {Shard(2), Shard(1)}}) {
      for (const auto& kv : std::vector<Placements>{{kR, kR}, {kR, Shard(1)}}) {
        SCOPED_TRACE(to_string(query) + " " + to_string(kv));
        expect_equal(attend(heads, options, mesh, query, kv), expected);
      }
    }
  });
}

// What one attention and its backward send; the output's gradient is placed as
// the output does, and the key's and value's stay pending.
int64_t bytes_sent(
    const mesh::DeviceMesh& mesh,
    const Heads& heads,
    const Placement& kv) {
  auto inputs = inputs_of(heads, /*masked=*/false);
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] =
        distributed(inputs[i].requires_grad_(), mesh, {i == 0 ? Shard(1) : kv});
  }
  auto& flight_recorder = mesh.group(0).flight_recorder();
  flight_recorder.reset();
  const auto output = at::scaled_dot_product_attention(
      inputs[0],
      inputs[1],
      inputs[2],
      {},
      /*dropout_p=*/0.0,
      /*is_causal=*/true,
      /*scale=*/std::nullopt,
      /*enable_gqa=*/true);
  EXPECT_EQ(spec_of(output).placement(0), Shard(1));
  if (kv == kR) {
    EXPECT_THAT(flight_recorder.counts(), IsEmpty());
  }
  output.backward(at::ones_like(output));
  return flight_recorder.total_bytes();
}

TEST(GroupedHeads, NoQueryIsGathered) {
  for (const auto& heads : all_heads()) {
    run_ranks(static_cast<int>(heads.ranks), [&](RankContext& self) {
      // Only the gradients of the whole key and value are brought together.
      const int64_t kv_bytes = kSamples * heads.kv * kKeys * 4 * 8;
      const int64_t bytes = bytes_sent(line(self), heads, kR);
      EXPECT_GT(bytes, 0);
      EXPECT_LE(bytes, 2 * kv_bytes)
          << heads.query << " " << heads.kv << " on " << heads.ranks;
    });
  }
}

TEST(GroupedHeads, WholeGroupsOnEachRankMoveNothing) {
  run_ranks(2, [](RankContext& self) {
    EXPECT_EQ(bytes_sent(line(self), {8, 4, 2}, Shard(1)), 0);
  });
  // On a mesh of two dims as well, of which one cuts the heads.
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    auto inputs = inputs_of({4, 2, 2}, /*masked=*/false);
    for (auto& input : inputs) {
      input = distributed(input, mesh, {Shard(0), Shard(1)});
    }
    mesh.group(1).flight_recorder().reset();
    at::scaled_dot_product_attention(
        inputs[0], inputs[1], inputs[2], {}, 0.0, true, {}, true);
    EXPECT_THAT(mesh.group(1).flight_recorder().counts(), IsEmpty());
  });
}

TEST(GroupedHeads, OtherNumbersOfHeadsAreAnError) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto q = distributed(random({1, 4, 3, 4}, 1), mesh, {Shard(1)});
    const auto k = distributed(random({1, 2, 3, 4}, 2), mesh, {kR});
    EXPECT_THROW(at::scaled_dot_product_attention(q, k, k), c10::ValueError);
  });
}

} // namespace
} // namespace weft::dtensor
