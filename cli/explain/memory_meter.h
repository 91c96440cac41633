#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>

namespace weft::recipes {

/// Counts the bytes that tensors of the meta device would take, from its
/// construction on. One at a time in a process, whose meta tensors it all
/// counts. Lifetime: outlives the tensors made while it lives.
class MemoryMeter {
 public:
  MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;
  ~MemoryMeter();

  int64_t live_bytes() const;
  /// The most that was live since the last reset.
  int64_t peak_bytes() const;
  void reset_peak();

 private:
  class CountingAllocator;
  std::unique_ptr<CountingAllocator> allocator_;
  c10::Allocator* before_;
};

} // namespace weft::recipes
