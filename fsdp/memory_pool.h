#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace weft::fsdp {

/// Memory that is taken and given back over and over, kept for whoever next
/// needs as much: memory that is new to a process has to be made of pages
/// first. Never holds more, together with what is in use, than was in use at
/// once.
class MemoryPool {
 public:
  at::DataPtr take(int64_t bytes, c10::Device device);
  void give(at::DataPtr memory, int64_t bytes);

  /// The same as a contiguous tensor without values, which nobody else may hold
  /// once it is given back.
  at::Tensor take_tensor(
      at::IntArrayRef sizes,
      const at::TensorOptions& options);
  void give_tensor(at::Tensor&& tensor);

  int64_t bytes_in_use() const { return bytes_in_use_; }
  int64_t bytes_kept() const { return free_bytes_; }
  int64_t peak_bytes_in_use() const { return peak_bytes_in_use_; }

 private:
  /// The longest unused first.
  std::vector<std::pair<int64_t, at::DataPtr>> free_;
  int64_t free_bytes_ = 0;
  int64_t bytes_in_use_ = 0;
  int64_t peak_bytes_in_use_ = 0;
};

/// A tensor without history in the memory of `storage`, from its beginning.
at::Tensor tensor_in(
    c10::Storage storage,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    const at::TensorOptions& options);

/// What the units of a model take and give back.
struct UnitMemory {
  /// Unsharded parameters.
  MemoryPool unsharded;
  /// What is gathered, and gradients on their way.
  MemoryPool messages;
};

} // namespace weft::fsdp
