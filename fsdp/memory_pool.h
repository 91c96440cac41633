#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace weft::fsdp {

/// Memory that unsharded parameters take and give back, kept for the next one
/// that needs as much: memory that is new to a process has to be made of pages
/// first. Never holds more, together with what is in use, than was in use at
/// once.
class MemoryPool {
 public:
  at::DataPtr take(size_t bytes, c10::Device device);
  void give(at::DataPtr memory, size_t bytes);
  /// Frees what is not in use.
  void clear() { free_.clear(), free_bytes_ = 0; }

  size_t bytes_in_use() const { return bytes_in_use_; }
  size_t bytes_kept() const { return free_bytes_; }
  size_t peak_bytes_in_use() const { return peak_bytes_in_use_; }

 private:
  /// The longest unused first.
  std::vector<std::pair<size_t, at::DataPtr>> free_;
  size_t free_bytes_ = 0;
  size_t bytes_in_use_ = 0;
  size_t peak_bytes_in_use_ = 0;
};

} // namespace weft::fsdp
