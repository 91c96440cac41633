#include "base/memory_allocator.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace weft::base {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

int64_t resident_bytes() {
  int64_t size = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// Allocates 64 MiB in `block` bytes each and writes to all of them.
std::vector<std::unique_ptr<char[]>> written_blocks(int64_t block) {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int64_t bytes = 0; bytes < 64 * kMebibyte; bytes += block) {
    blocks.push_back(std::make_unique_for_overwrite<char[]>(block));
    std::memset(blocks.back().get(), 1, block);
  }
  return blocks;
}

TEST(MemoryAllocator, FreedBlocksAreUsedAgainUntilTheyAreReleased) {
  const auto allocator = memory_allocator();
  EXPECT_NE(allocator, "unknown");
  if (!allocator.starts_with("libc.so")) {
    GTEST_SKIP() << allocator << " has rules of its own";
  }
  keep_freed_memory();
  written_blocks(kMebibyte);
  const int64_t before = page_faults();
  written_blocks(kMebibyte);
  EXPECT_LT(page_faults() - before, 1000); // 16,384 pages

  const int64_t kept = resident_bytes();
  release_freed_memory();
  EXPECT_LT(resident_bytes(), kept - 48 * kMebibyte);
}

} // namespace
} // namespace weft::base
