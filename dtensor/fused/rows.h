#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

namespace weft::dtensor::fused {

/// The number of elements that justify another thread.
constexpr int64_t kGrain = 16384;

/// Returns the stride between rows along the last dim if rows are equidistant
/// and contiguous.
inline std::optional<int64_t> row_stride(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const int64_t columns = sizes.empty() ? 1 : sizes.back();
  if (tensor.is_contiguous()) {
    return columns;
  }
  if (columns != 1 && strides.back() != 1) {
    return std::nullopt;
  }
  std::optional<int64_t> row;
  int64_t next = 0;
  for (int64_t i = tensor.dim() - 2; i >= 0; --i) {
    if (sizes[i] == 1) {
      continue;
    }
    if (row && strides[i] != next) {
      return std::nullopt;
    }
    row = row.value_or(strides[i]);
    next = strides[i] * sizes[i];
  }
  return row.value_or(columns);
}

/// Returns the tensor if row_stride() has a value, otherwise a contiguous copy.
inline at::Tensor with_rows(const at::Tensor& tensor) {
  return row_stride(tensor) ? tensor : tensor.contiguous();
}

/// Returns `result`, which is contiguous, with the order of dims in memory of
/// `input`, as libtorch's elementwise ops do.
inline at::Tensor laid_out_like(
    const at::Tensor& input,
    const at::Tensor& result) {
  if (input.is_contiguous()) {
    return result;
  }
  auto target = at::empty_like(input);
  return target.is_contiguous() ? result : target.copy_(result);
}

/// Runs `loop` over `rows` rows of about `elements` elements with a suitable
/// number of threads.
template <class Loop>
void run_rows(const Loop& loop, int64_t rows, int64_t elements) {
  const auto grain = kGrain / std::max<int64_t>(1, elements);
  at::parallel_for(
      0, rows, std::max<int64_t>(1, grain), [&](int64_t first, int64_t last) {
        run(loop, first, last);
      });
}

} // namespace weft::dtensor::fused
