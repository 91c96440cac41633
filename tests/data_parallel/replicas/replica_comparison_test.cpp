#include "data_parallel/replicas/replica_comparison.h"

#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data_parallel/replicas/tensor_hash.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/run_ranks.h"

namespace weft::data_parallel {
namespace {

using test::RankContext;
using test::run_ranks;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kFirst = 1;
constexpr uint32_t kSecond = 2;
constexpr uint32_t kBoth = 3;

TEST(ReplicasMatch, EachDimComparesWhatIsCopiedAlongIt) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto row = self.rank / 2;
    const auto column = self.rank % 2;
    EXPECT_TRUE(replicas_match(
        {{7, kBoth}, {column, kFirst}, {row, kSecond}, {self.rank, 0}}, mesh));
    EXPECT_FALSE(replicas_match({{7, kBoth}, {column, kBoth}}, mesh));
    EXPECT_FALSE(replicas_match({{7, kBoth}, {row, kFirst}}, mesh));
    EXPECT_TRUE(replicas_match({}, mesh));
  });
}

// One rank's number is changed: all ranks hear of it, also where it is copied
// along the second dim alone.
TEST(ReplicasMatch, AllRanksHearOfADifferenceAnywhere) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (int guilty = 0; guilty < 4; ++guilty) {
      const int64_t value = self.rank == guilty ? 1 : 0;
      for (const auto dims : {kFirst, kSecond, kBoth}) {
        EXPECT_FALSE(replicas_match({{3, kBoth}, {value, dims}}, mesh));
        const auto found =
            find_replica_mismatch({{3, kBoth}, {value, dims}}, mesh);
        EXPECT_EQ(found.index, 1U);
        EXPECT_EQ(found.values[static_cast<size_t>(guilty)], 1);
        if (dims == kBoth) {
          EXPECT_THAT(found.mismatched_ranks, ElementsAre(guilty));
          EXPECT_EQ(found.majority_ranks.size(), 3U);
        } else {
          EXPECT_EQ(found.tied_ranks.size(), 2U);
          EXPECT_THAT(found.mismatched_ranks, IsEmpty());
        }
      }
    }
  });
}

TEST(ReplicasMatch, SaysSoWithOneSmallMessageADim) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    std::vector<ReplicatedHash> numbers(100, {5, kBoth});
    numbers.push_back({self.rank % 2, kFirst});
    EXPECT_TRUE(replicas_match(numbers, mesh));
    for (const auto* dim : {"dp", "tp"}) {
      const auto entries = mesh.group(dim).flight_recorder().entries();
      ASSERT_EQ(entries.size(), 1U) << dim;
      EXPECT_EQ(entries[0].bytes, 24);
    }
  });
}

TEST(ReplicaMismatch, MajorityValueWins) {
  run_ranks(5, [](RankContext& self) {
    const auto mesh = self.mesh({5}, {"dp"});
    const auto vote = [&](std::vector<int64_t> of_ranks) {
      return find_replica_mismatch(
          {{0, kFirst}, {of_ranks[static_cast<size_t>(self.rank)], kFirst}},
          mesh);
    };
    const auto one = vote({4, 4, 9, 4, 4});
    EXPECT_THAT(one.majority_ranks, ElementsAre(0, 1, 3, 4));
    EXPECT_THAT(one.mismatched_ranks, ElementsAre(2));
    EXPECT_THAT(one.values, ElementsAre(4, 4, 9, 4, 4));
    const auto two = vote({1, 4, 9, 4, 8});
    EXPECT_THAT(two.majority_ranks, ElementsAre(1, 3));
    EXPECT_THAT(two.mismatched_ranks, ElementsAre(0, 2, 4));
    const auto even = vote({1, 4, 1, 4, 8});
    EXPECT_THAT(even.tied_ranks, ElementsAre(0, 1, 2, 3, 4));
    EXPECT_THAT(even.majority_ranks, IsEmpty());
  });
}

TEST(ReplicaMismatch, ComparesEachReplicaSetSeparately) {
  run_ranks(6, [](RankContext& self) {
    const auto mesh = self.mesh({3, 2}, {"dp", "tp"});
    // Columns hold other values; ranks 1 and 4 differ from their column's.
    const int64_t own = self.rank == 4 ? -1 : self.rank % 2;
    const auto found = find_replica_mismatch({{own, kFirst}}, mesh);
    EXPECT_THAT(found.mismatched_ranks, ElementsAre(4));
    EXPECT_THAT(found.majority_ranks, ElementsAre(0, 2));
  });
}

TEST(TensorHash, EveryBitCounts) {
  const auto values = at::arange(33, at::kFloat);
  const auto before = hash_of_bits(values);
  EXPECT_EQ(before, hash_of_bits(values.clone()));
  auto* bytes = static_cast<unsigned char*>(values.mutable_data_ptr());
  for (size_t bit = 0; bit < values.nbytes() * 8; ++bit) {
    bytes[bit / 8] ^= 1U << bit % 8;
    EXPECT_NE(hash_of_bits(values), before) << bit;
    bytes[bit / 8] ^= 1U << bit % 8;
  }
  const auto matrix = at::arange(12, at::kBFloat16).view({3, 4});
  EXPECT_EQ(hash_of_bits(matrix.t().contiguous()), hash_of_bits(matrix.t()));
  EXPECT_EQ(hash_of_bits(at::empty({0})), hash_of("", 0));
}

// As on a device, of all sizes around a block's.
TEST(TensorHash, SumsOfBlocksShowEveryChangedElement) {
  for (const int64_t bytes : {1, 4095, 4096, 4097, 8191, 20'000}) {
    const auto whole = at::arange(bytes + 1).to(at::kByte);
    const auto values = whole.narrow(0, 1, bytes); // Not aligned.
    const auto sums = detail::sum_of_blocks(values);
    EXPECT_LE(sums.numel(), 16384 + 4095);
    for (int64_t at = 0; at < bytes; at += 1 + bytes / 97) {
      auto changed = values.clone();
      changed[at] += 128;
      EXPECT_FALSE(at::equal(detail::sum_of_blocks(changed), sums)) << at;
    }
    EXPECT_TRUE(at::equal(detail::sum_of_blocks(values.clone()), sums));
  }
  EXPECT_EQ(
      detail::sum_of_blocks(at::ones({64, 64}, at::kBFloat16)).numel(), 16384);
}

// As on a device: the same rows in another order are another tensor.
TEST(TensorHash, SumsOfBlocksShowRowsThatChangedPlaces) {
  for (const int64_t rows : {2, 63, 64, 65, 200}) {
    const auto values = at::arange(rows * 1024, at::kFloat).view({rows, 1024});
    const auto sums = detail::sum_of_blocks(values);
    for (const auto& [a, b] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {0, rows - 1}, {rows / 2, rows - 1}, {0, rows / 2}}) {
      if (a == b) {
        continue;
      }
      const auto swapped = values.clone();
      swapped[a].copy_(values[b]);
      swapped[b].copy_(values[a]);
      EXPECT_FALSE(at::equal(detail::sum_of_blocks(swapped), sums))
          << rows << ": " << a << " and " << b;
    }
  }
}

} // namespace
} // namespace weft::data_parallel
