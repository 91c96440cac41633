#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::matmul::onednn {

/// What oneDNN does on this host, as products of small matrices have shown.
struct Support {
  /// Why it cannot multiply float32; empty: it can.
  std::string problem;
  /// Batches of matrices, products written to memory that is given, and sums on
  /// top of what is there, all without a copy: at::native::mkldnn_matmul, which
  /// libtorch keeps to processors that widen bfloat16. Elsewhere only
  /// mkldnn::_linear_pointwise is left, which makes its result's memory.
  bool has_matmul = false;
  /// It takes bfloat16, and is no slower with it than with float32.
  bool has_bfloat16 = false;
};

/// Tried once in a process.
const Support& support();

/// Of the product of [.., m, k] and [.., k, n].
std::vector<int64_t> product_sizes(const at::Tensor& a, const at::Tensor& b);

/// The product of [m, k] and [k, n], contiguous; operands of any strides.
/// Batches ([e, m, k], [e, k, n]) need has_matmul.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b);

/// out = a b, or out += a b if `accumulate`. `out` shares no memory with the
/// operands; its rows are contiguous each, the operands have any strides.
void multiply_into(
    const at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b,
    bool accumulate = false);

} // namespace weft::matmul::onednn
