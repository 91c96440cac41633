#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::matmul::onednn {

/// The capabilities of oneDNN on this host, determined with small matmuls.
struct Support {
  /// The reason why it cannot multiply float32. Empty if it can.
  std::string problem;
  /// True if at::native::mkldnn_matmul works: batches, results in given memory,
  /// and sums on top of it, all without a copy. libtorch enables it only on
  /// processors that convert bfloat16. Otherwise only mkldnn::_linear_pointwise
  /// is available, which allocates its result.
  bool has_matmul = false;
  /// True if it supports bfloat16 at least as fast as float32.
  bool has_bfloat16 = false;
};

/// Returns the capabilities, determined once per process.
const Support& support();

/// Returns the sizes of the product of [.., m, k] and [.., k, n].
std::vector<int64_t> product_sizes(const at::Tensor& a, const at::Tensor& b);

/// Returns the contiguous product of [m, k] and [k, n], with operands of any
/// strides. Batches ([e, m, k], [e, k, n]) need has_matmul.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b);

/// Computes out = a b, or out += a b if `accumulate`. `out` does not share
/// memory with the operands and has contiguous rows; operands may have any
/// strides.
void multiply_into(
    const at::Tensor& out,
    const at::Tensor& a,
    const at::Tensor& b,
    bool accumulate = false);

} // namespace weft::matmul::onednn
