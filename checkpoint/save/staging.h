#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::checkpoint {

/// Memory for copies of tensors, so that the tensors may change while the
/// copies are written. Reused by later saves; grows as needed.
class Staging {
 public:
  /// Returns contiguous copies on the CPU of `tensors`, which may be on any
  /// device and non-contiguous. Blocks until the copies are complete. They are
  /// valid until the next call. The memory is pinned if a tensor is on a CUDA
  /// device.
  std::vector<at::Tensor> copy(const std::vector<at::Tensor>& tensors);

  /// Allocates memory for copies of `tensors` and touches its pages.
  void reserve(const std::vector<at::Tensor>& tensors);

  int64_t bytes() const { return memory_.defined() ? memory_.numel() : 0; }

 private:
  void grow(const std::vector<at::Tensor>& tensors);

  at::Tensor memory_;
};

} // namespace weft::checkpoint
