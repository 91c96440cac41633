#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <memory>
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

} // namespace
} // namespace weft::base
