#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>

namespace weft::cli {

/// Counts the bytes that tensors on the meta device would use, from its
/// construction on. One per process, because it counts all meta tensors.
/// Lifetime: must outlive the tensors created during its lifetime.
class MemoryMeter {
 public:
  MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;
  ~MemoryMeter();

  int64_t live_bytes() const;
  /// Returns the peak since the last reset.
  int64_t peak_bytes() const;
  void reset_peak();

 private:
  class CountingAllocator;
  std::unique_ptr<CountingAllocator> allocator_;
  c10::Allocator* before_;
};

} // namespace weft::cli
