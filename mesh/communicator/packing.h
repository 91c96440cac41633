#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::mesh {

/// Tensors as one flat contiguous buffer: a view if they are adjacent in
/// memory, otherwise a copy.
class Packed {
 public:
  /// Returns a buffer with the values of the tensors.
  static Packed input(const std::vector<at::Tensor>& tensors);
  /// Returns a buffer whose values unpack() later copies to the tensors.
  static Packed output(std::vector<at::Tensor> tensors);

  const at::Tensor& buffer() const { return buffer_; }
  /// The number of elements of each tensor.
  const std::vector<int64_t>& counts() const { return counts_; }
  /// Returns the function that copies the buffer to the tensors. Empty if the
  /// buffer is a view.
  std::function<void()> unpack() const;

 private:
  explicit Packed(std::vector<at::Tensor> tensors);
  void copy_in() const;

  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> counts_;
  at::Tensor buffer_;
  bool is_view_ = false;
};

} // namespace weft::mesh
