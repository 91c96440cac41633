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
    EXPECT_EQ(count_streamed(choice, 5000, limit - 0.1, streamed), 0);
    EXPECT_EQ(count_streamed(choice, 3, limit + 0.1, streamed), 0);
    EXPECT_EQ(count_streamed(choice, 100, limit + 0.1, streamed), 100);
  }
}

TEST(ShmStoreChoice, SlowCopiesHereAndThereChangeNothing) {
  ShmStoreChoice choice;
  count_streamed(choice, 6, kNear, kStreamed);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(count_streamed(choice, 2, 1000, kStreamed), 0);
    EXPECT_EQ(count_streamed(choice, 1, kNear, kStreamed), 0);
  }
}

TEST(ShmStoreChoice, ARankThatMovesNearItsReaderReturnsToOrdinaryStores) {
  ShmStoreChoice choice;
  count_streamed(choice, 6, kFar, kStreamed);
  EXPECT_EQ(count_streamed(choice, 5000, kFar, kStreamed), 4996);
  // One copy in 1,024 is a trial.
  const int streamed = count_streamed(choice, 1024, kNear, kStreamed);
  EXPECT_LT(streamed, 1024);
  EXPECT_EQ(count_streamed(choice, 100, kNear, kStreamed), 0);
}

// Both kinds of store, since the first copies of a size try both.
TEST(ShmSlotWriter, CopiesAnySizeToAnyAddress) {
  ShmSlotWriter writer;
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
        size_t{16} << 10,
        (size_t{16} << 10) + 1,
        (size_t{64} << 10) + 77}) {
    for (size_t offset = 0; offset < 70; offset += offset < 4 ? 1 : 11) {
      for (int repeat = 0; repeat < 7; ++repeat) {
        std::vector<std::byte> to(kMost + 64, other);
        writer.copy(to.data() + offset, from.data() + offset / 2, bytes);
        const auto begin = to.begin() + static_cast<std::ptrdiff_t>(offset);
        const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
        ASSERT_TRUE(std::equal(
            begin, end, from.begin() + static_cast<std::ptrdiff_t>(offset / 2)))
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
