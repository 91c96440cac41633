// Which ranks hold what, as text.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/debug/visualize_sharding.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/world.h"

namespace weft::dtensor {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

mesh::DeviceMesh imagined(std::vector<int64_t> shape) {
  int64_t ranks = 1;
  std::vector<std::string> names;
  for (const int64_t size : shape) {
    ranks *= size;
    names.push_back("m" + std::to_string(names.size()));
  }
  return mesh::DeviceMesh::create(
      mesh::World::fake(0, ranks), std::move(shape), std::move(names));
}

std::string shown(
    const std::vector<int64_t>& shape,
    const Placements& placements,
    c10::IntArrayRef sizes) {
  return visualize_sharding(DTensorSpec(imagined(shape), placements), sizes);
}

TEST(VisualizeShardingTest, OneDimIsAList) {
  EXPECT_EQ(
      shown({2}, {Shard(0)}, {6}),
      "[6] [S(0)] on m0=2\n"
      "dim 0 | ranks\n"
      "0-2   | 0\n"
      "3-5   | 1\n");
}

TEST(VisualizeShardingTest, TwoDimsAreAGrid) {
  EXPECT_EQ(
      shown({2, 2}, {Shard(0), Shard(1)}, {4, 6}),
      "[4, 6] [S(0), S(1)] on m0=2 m1=2\n"
      "dim 0 | dim 1: 0-2 | dim 1: 3-5\n"
      "0-1   | 0          | 1\n"
      "2-3   | 2          | 3\n");
}

TEST(VisualizeShardingTest, ReplicasShareACell) {
  EXPECT_EQ(
      shown({2, 3}, {Shard(1), Replicate()}, {2, 4}),
      "[2, 4] [S(1), R] on m0=2 m1=3\n"
      "dim 1 | ranks\n"
      "0-1   | 0-2\n"
      "2-3   | 3-5\n");
  EXPECT_THAT(
      shown({2, 2}, {Replicate(), Replicate()}, {3}),
      HasSubstr("all of it: ranks 0-3\n"));
}

TEST(VisualizeShardingTest, UnevenAndEmptyParts) {
  EXPECT_EQ(
      shown({4}, {Shard(0)}, {5}),
      "[5] [S(0)] on m0=4\n"
      "dim 0 | ranks\n"
      "0-1   | 0\n"
      "2-3   | 1\n"
      "4     | 2\n"
      "nothing: ranks 3\n");
  EXPECT_THAT(shown({2}, {Shard(0)}, {0, 3}), HasSubstr("no elements"));
}

TEST(VisualizeShardingTest, StridedPartsAreInPieces) {
  EXPECT_EQ(
      shown({2}, {StridedShard(0, 2)}, {8}),
      "[8] [_S(0, 2)] on m0=2\n"
      "dim 0 | ranks\n"
      "0-1   | 0\n"
      "2-3   | 1\n"
      "4-5   | 0\n"
      "6-7   | 1\n");
}

TEST(VisualizeShardingTest, PendingSumsAreSaid) {
  EXPECT_THAT(
      shown({2, 2}, {Partial(), Shard(0)}, {4}),
      HasSubstr("pending over m0: each of its ranks holds a term of"));
}

TEST(VisualizeShardingTest, ThreeCutDimsAreARankALine) {
  const auto text = shown({2, 2, 2}, {Shard(0), Shard(1), Shard(2)}, {2, 2, 4});
  EXPECT_THAT(text, HasSubstr("rank 0: [0, 0, 0-1]\n"));
  EXPECT_THAT(text, HasSubstr("rank 7: [1, 1, 2-3]\n"));
}

TEST(VisualizeShardingTest, ManyRanksAreCut) {
  EXPECT_THAT(
      shown({100}, {Shard(0)}, {200}), HasSubstr("and 36 ranks more\n"));
}

TEST(VisualizeShardingTest, NeverThrows) {
  EXPECT_EQ(visualize_sharding(at::Tensor()), "an undefined tensor\n");
  EXPECT_THAT(visualize_sharding(torch::zeros({2})), StartsWith("a plain"));
  // A dim that the tensor does not have.
  EXPECT_NO_THROW(shown({2}, {Shard(3)}, {2, 2}));
  EXPECT_NO_THROW(shown({2}, {Shard(0)}, {}));
  EXPECT_THAT(
      visualize_sharding(
          from_local(torch::zeros({2, 2}), imagined({2}), {Shard(1)})),
      HasSubstr("dim 1 | ranks\n0-1   | 0\n2-3   | 1\n"));
}

} // namespace
} // namespace weft::dtensor
