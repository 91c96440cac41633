#include "mesh/backends/shm/shm_slot_writer.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace weft::mesh {
namespace {

// Nanoseconds for a line of 64 bytes.
constexpr double kNear = 5;
constexpr double kFar = 20;
constexpr double kStreamed = 1.5;

/// Makes `copies` copies, a line of which takes the given times. Returns how
/// many were streamed.
int count_streamed(
    ShmStoreChoice& choice,
    int copies,
    double ordinary,
    double streamed) {
  int count = 0;
  for (int i = 0; i < copies; ++i) {
    const bool is_streamed = choice.next_is_streamed();
    choice.add(is_streamed, (is_streamed ? streamed : ordinary) / 64);
    count += is_streamed ? 1 : 0;
  }
  return count;
}

TEST(ShmStoreChoice, OrdinaryStoresAreUsedUnlessTheyTakeMuchLonger) {
  for (const double streamed : {2.0, 4.0, 8.0}) {
    const double limit = std::max(3 * streamed, 12 + streamed);
    ShmStoreChoice choice;
    // Three of each tell.
    EXPECT_EQ(count_streamed(choice, 6, limit - 0.1, streamed), 3);
    EXPECT_EQ(count_streamed(choice, 15, limit - 0.1, streamed), 0);
    EXPECT_EQ(count_streamed(choice, 1, limit - 0.1, streamed), 1);
    EXPECT_EQ(count_streamed(choice, 3, limit + 0.1, streamed), 0);
    EXPECT_EQ(count_streamed(choice, 28, limit + 0.1, streamed), 28);
  }
}

TEST(ShmStoreChoice, TheOtherStoresAreTriedMoreAndMoreSeldom) {
  ShmStoreChoice near;
  ShmStoreChoice far;
  count_streamed(near, 6, kNear, kStreamed);
  count_streamed(far, 6, kFar, kStreamed);
  // After 16, 32, ... 1,024 copies, and then after each 1,024.
  EXPECT_EQ(count_streamed(near, 16 + 32 + 64, kNear, kStreamed), 3);
  EXPECT_EQ(count_streamed(far, 16 + 32 + 64, kFar, kStreamed), 109);
  EXPECT_EQ(count_streamed(near, 128 + 256 + 512, kNear, kStreamed), 3);
  EXPECT_EQ(count_streamed(far, 128 + 256 + 512, kFar, kStreamed), 893);
  EXPECT_EQ(count_streamed(near, 10240, kNear, kStreamed), 10);
  EXPECT_EQ(count_streamed(far, 10240, kFar, kStreamed), 10230);
}

TEST(ShmStoreChoice, SlowCopiesHereAndThereChangeNothing) {
  ShmStoreChoice choice;
  count_streamed(choice, 6, kNear, kStreamed);
  int streamed = 0;
  for (int i = 0; i < 100; ++i) {
    streamed += count_streamed(choice, 1, 1000, kStreamed);
    streamed += count_streamed(choice, 1, kNear, kStreamed);
  }
  EXPECT_EQ(streamed, 3); // the trials after 16, 48 and 112 copies
}

// The first copies of a size are also the first to touch their part of a slot.
TEST(ShmStoreChoice, FirstCopiesThatWereSlowAreForgotten) {
  ShmStoreChoice near;
  EXPECT_EQ(count_streamed(near, 6, 50, kStreamed), 3);
  count_streamed(near, 100, kNear, kStreamed);
  EXPECT_LE(count_streamed(near, 100, kNear, kStreamed), 1);
  ShmStoreChoice far;
  EXPECT_EQ(count_streamed(far, 6, kFar, 50), 3);
  count_streamed(far, 100, kFar, kStreamed);
  EXPECT_GE(count_streamed(far, 100, kFar, kStreamed), 99);
}

TEST(ShmStoreChoice, ARankThatMovesIsNoticedByTheNextTrial) {
  ShmStoreChoice choice;
  count_streamed(choice, 5000, kFar, kStreamed);
  count_streamed(choice, 1024, kNear, kStreamed);
  EXPECT_LE(count_streamed(choice, 1000, kNear, kStreamed), 1);
  count_streamed(choice, 4, kFar, kStreamed);
  EXPECT_GE(count_streamed(choice, 1000, kFar, kStreamed), 999);
}

TEST(ShmSlotWriter, CopiesAnySizeToAnyAddress) {
  constexpr size_t kMost = (size_t{64} << 10) + 200;
  std::vector<std::byte> from(kMost);
  for (size_t i = 0; i < kMost; ++i) {
    from[i] = static_cast<std::byte>(i * 31 + i / 256);
  }
  const std::byte other{0xA5};
  for (const size_t bytes :
       {size_t{0},
        size_t{1},
        size_t{1000},
        size_t{8} << 10,
        (size_t{8} << 10) + 1,
        (size_t{64} << 10) + 77}) {
    for (size_t offset = 0; offset < 70; offset += offset < 4 ? 1 : 11) {
      // The first six copies of a size try both kinds of store.
      ShmSlotWriter writer(2);
      for (int repeat = 0; repeat < 12; ++repeat) {
        std::vector<std::byte> to(kMost + 64, other);
        const auto* source = from.data() + offset / 2;
        if (repeat < 6) {
          writer.copy_for_all(to.data() + offset, source, bytes);
        } else {
          writer.copy_for(1, to.data() + offset, source, bytes);
        }
        const auto begin = to.begin() + static_cast<std::ptrdiff_t>(offset);
        const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
        ASSERT_TRUE(std::equal(begin, end, source))
            << bytes << " bytes at " << offset;
        ASSERT_EQ(
            std::count(to.begin(), begin, other),
            static_cast<std::ptrdiff_t>(offset));
        ASSERT_EQ(std::count(end, to.end(), other), to.end() - end);
      }
    }
  }
}

} // namespace
} // namespace weft::mesh
