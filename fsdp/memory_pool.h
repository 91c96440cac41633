#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace weft::fsdp {

/// Keeps returned memory for the next request of the same size, because new
/// memory must be mapped by the kernel first. Used and free memory together
/// never exceed the peak of used memory.
class MemoryPool {
 public:
  at::DataPtr take(int64_t bytes, c10::Device device);
  void give(at::DataPtr memory, int64_t bytes);

  /// Takes memory as a contiguous uninitialized tensor, which must have no
  /// other owner when it is returned.
  at::Tensor take_tensor(
      at::IntArrayRef sizes,
      const at::TensorOptions& options);
  void give_tensor(at::Tensor&& tensor);

  int64_t bytes_in_use() const { return bytes_in_use_; }
  int64_t bytes_kept() const { return free_bytes_; }
  int64_t peak_bytes_in_use() const { return peak_bytes_in_use_; }

 private:
  /// Ordered by the time of return, oldest first.
  std::vector<std::pair<int64_t, at::DataPtr>> free_;
  int64_t free_bytes_ = 0;
  int64_t bytes_in_use_ = 0;
  int64_t peak_bytes_in_use_ = 0;
};

/// Returns a tensor without history in the memory of `storage`, from its start.
at::Tensor tensor_in(
    c10::Storage storage,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    const at::TensorOptions& options);

/// The memory of a model's units.
struct UnitMemory {
  /// The memory of unsharded parameters.
  MemoryPool unsharded;
  /// The memory of gathered data and of gradients in flight.
  MemoryPool messages;
};

} // namespace weft::fsdp
