#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::checkpoint {

/// The tensor's name and the index of its first element in the full tensor, for
/// messages. Without `offset` they do not name an index.
struct TensorPlace {
  std::string name;
  std::optional<std::vector<int64_t>> offset = std::nullopt;
};

/// Returns `tensor`, which is on the CPU, rounded to the floating-point dtype
/// `to`. Values that are not finite stay so.
/// Throws: c10::ValueError if a finite value would become infinite. It names
/// the tensor, the index, the value and the dtypes that hold it.
at::Tensor
round_to(const at::Tensor& tensor, at::ScalarType to, const TensorPlace& place);

/// Returns "\"name\"[3, 0] is inf" for the first value that is not finite, or
/// an empty string if all are.
std::string describe_non_finite(
    const at::Tensor& tensor,
    const TensorPlace& place);

} // namespace weft::checkpoint
