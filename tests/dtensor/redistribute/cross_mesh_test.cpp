#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/redistribution.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::cut_all;
using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_line;
using dtensor::test::fake_mesh;
using dtensor::test::local_of;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

// This rank's part on a mesh of all ranks or a slice of one.
at::Tensor own_part(const at::Tensor& whole, const DTensorSpec& spec) {
  int64_t index = 0;
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    index = index * spec.mesh().size(i) + spec.mesh().coordinate(i);
  }
  // Of integers, so that Partial sums are exact.
  return cut_all(
             whole.to(at::kLong), spec.placements(), spec.mesh().shape())[index]
      .to(whole.scalar_type());
}

void check_there_and_back(
    const at::Tensor& whole,
    const DTensorSpec& from,
    const DTensorSpec& to) {
  SCOPED_TRACE(from.to_string() + " -> " + to.to_string());
  const auto sizes = whole.sizes().vec();
  const auto local = own_part(whole, from).clone().requires_grad_();
  const auto x =
      from_local(local, from.mesh(), from.placements(), {.sizes = sizes});
  const auto y = redistribute(x, to.mesh(), to.placements());
  EXPECT_EQ(spec_of(y), fitted(to, sizes));
  if (!to.has_partial()) {
    EXPECT_TRUE(at::equal(local_of(y), own_part(whole, spec_of(y))));
  }
  const auto back = redistribute(y, from.mesh(), from.placements());
  EXPECT_EQ(spec_of(back), spec_of(x));
  EXPECT_TRUE(at::equal(full_tensor(back), whole));

  const auto weights = random(sizes, 9).mul(4).round();
  (full_tensor(y) * weights).sum().backward();
  const auto expected = own_part(weights, from.without_partial());
  expect_close(local.grad(), expected, 1e-12, "gradient");
}

TEST(CrossMesh, ToAnotherMeshOfTheSameRanks) {
  run_ranks(4, [](RankContext& self) {
    const auto line = self.mesh({4}, {"all"});
    const auto square = self.mesh({2, 2}, {"dp", "tp"});
    const auto other = self.mesh({2, 2}, {"tp", "dp"});
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{8, 4}, {5, 3}, {1, 2}, {0, 3}}) {
      const auto whole = random(sizes, 1).mul(4).round();
      const std::vector<DTensorSpec> specs{
          {line, {Shard(0)}},
          {line, {Shard(1)}},
          {line, {Replicate()}},
          {line, {Partial()}},
          {square, {Shard(0), Shard(1)}},
          {square, {StridedShard(0, 2), Shard(0)}},
          {square, {Partial(), Shard(0)}},
          {other, {Replicate(), Shard(0)}},
          {other, {Shard(1), Replicate()}}};
      for (const auto& from : specs) {
        for (const auto& to : specs) {
          check_there_and_back(whole, from, to);
        }
      }
    }
  });
}

TEST(CrossMesh, ToASliceAndBack) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto line = self.mesh({4}, {"all"});
    const auto whole = random({5, 3}, 1).mul(4).round();
    const std::vector<DTensorSpec> specs{
        {mesh, {Shard(0), Shard(1)}},
        {mesh, {Partial(), Shard(0)}},
        {mesh["tp"], {Shard(0)}},
        {mesh["tp"], {Replicate()}},
        {mesh["dp"], {Shard(1)}},
        {mesh.flatten(), {Shard(0)}},
        {line, {Shard(0)}}};
    for (const auto& from : specs) {
      for (const auto& to : specs) {
        const bool flat =
            from.mesh() == mesh.flatten() || to.mesh() == mesh.flatten();
        const bool slice = from.mesh().size() == 2 || to.mesh().size() == 2;
        if (!(flat && slice)) {
          check_there_and_back(whole, from, to);
        }
      }
    }
  });
}

TEST(CrossMesh, NothingIsSentWhereEachRankHasWhatItNeeds) {
  run_ranks(4, [](RankContext& self) {
    const auto line = self.mesh({4}, {"all"});
    const auto square = self.mesh({2, 2}, {"dp", "tp"});
    const auto whole = random({8, 4}, 1);
    const auto x = distributed(whole, line, {Shard(0)});
    auto& flight_recorder = line.group(0).flight_recorder();
    flight_recorder.reset();
    const auto y = redistribute(x, square, {Shard(0), Shard(0)});
    EXPECT_TRUE(flight_recorder.counts().empty());
    EXPECT_TRUE(at::equal(local_of(y), local_of(x)));
    redistribute(y, square["tp"], {Shard(0)});
    EXPECT_FALSE(local_of(y).is_alias_of(local_of(x)));
  });
}

TEST(CrossMesh, TwiceDifferentiable) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto line = self.mesh({4}, {"all"});
    const auto whole = random({5}, 1);
    const auto x =
        distributed(whole, mesh, {Shard(0), Replicate()}).requires_grad_();
    const auto y = redistribute(x, line, {Shard(0)});
    const auto loss = y.pow(3).sum();
    const auto grad = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
    full_tensor(grad).pow(2).sum().backward();
    expect_close(
        full_tensor(x.grad()),
        whole.pow(3).mul(36),
        1e-12,
        "second derivative");
  });
}

TEST(CrossMesh, MeshesOfOtherRanksAreRefused) {
  const auto x = distributed(at::ones({4, 2}), fake_line(0, 2), {Shard(0)});
  const auto other = fake_mesh(0, {2, 2}, {"dp", "model"});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        redistribute(x, other, {Shard(0), Replicate()});
      }),
      AllOf(
          HasSubstr("ranks of mesh tp=2 == ranks of mesh dp=2 model=2"),
          HasSubstr("[0, 1] vs [0, 1, 2, 3]"),
          HasSubstr("[4, 2] from [S(0)]"),
          HasSubstr("rank 0/2")));
}

} // namespace
} // namespace weft::dtensor
