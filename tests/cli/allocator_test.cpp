// The allocator of programs with libtorch.
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/memory_allocator.h"

namespace weft::base {
namespace {

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// As before the libraries of this program were initialised.
TEST(MemoryForLibtorch, ComesAtOnceAndServesSmallBlocks) {
  if (!memory_allocator().starts_with("libtcmalloc")) {
    GTEST_SKIP() << memory_allocator() << " has rules of its own";
  }
  const int64_t before = page_faults();
  take_memory_for_libtorch();
  constexpr int64_t kBlock = 1024;
  constexpr int64_t kBlocks = 40 * 1024;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int64_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique_for_overwrite<char[]>(kBlock));
    std::memset(blocks.back().get(), 1, kBlock);
  }
  EXPECT_LT(page_faults() - before, 2000); // 10,240 pages
}

// Ranks may be threads.
TEST(MemoryAllocator, ThreadsMayReleaseMemoryAtOnce) {
  std::atomic<int> waiting = 2;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&waiting] {
      // Asleep, one would wake long before the other.
      for (--waiting; waiting > 0;) {
      }
      release_freed_memory();
    });
  }
}

} // namespace
} // namespace weft::base
