#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::mesh {

/// Tensors seen as one flat, contiguous buffer: a view of them where they lie
/// so in memory, else a copy.
class Packed {
 public:
  /// A buffer that begins with the tensors' values.
  static Packed input(const std::vector<at::Tensor>& tensors);
  /// A buffer for values that unpack() then moves to the tensors.
  static Packed output(std::vector<at::Tensor> tensors);

  const at::Tensor& buffer() const { return buffer_; }
  /// Elements of each tensor.
  const std::vector<int64_t>& counts() const { return counts_; }
  /// What moves the buffer's values to the tensors; empty if it is a view.
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
