#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::checkpoint {

/// Memory that tensors are copied to, so that they may change while the copies
/// are written. Kept from one time to the next; grows as needed.
class Staging {
 public:
  /// Contiguous copies, on the CPU, of `tensors`, which may lie on any device
  /// and be non-contiguous. Blocks until they are made; they are valid until
  /// the next call. Memory is pinned if one of the tensors is on a CUDA device.
  std::vector<at::Tensor> copy(const std::vector<at::Tensor>& tensors);

  /// Memory for copies of as much as `tensors`, its pages there.
  void reserve(const std::vector<at::Tensor>& tensors);

  int64_t bytes() const { return memory_.defined() ? memory_.numel() : 0; }

 private:
  void grow(const std::vector<at::Tensor>& tensors);

  at::Tensor memory_;
};

} // namespace weft::checkpoint
