#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace weft::data_parallel {

/// Casts parameters to low precision for computation and keeps their full
/// precision. The tensors stay the same because modules hold them in members;
/// their data are exchanged.
/// Source: torch/nn/parallel/distributed.py, _root_copy_hook.
class ParameterCast {
 public:
  ParameterCast(std::vector<at::Tensor> parameters, c10::ScalarType dtype);
  ~ParameterCast();
  ParameterCast(const ParameterCast&) = delete;
  ParameterCast& operator=(const ParameterCast&) = delete;

  bool is_low_precision() const { return !full_.empty(); }

  /// Returns a parameter's values in full precision. Undefined if it is not
  /// cast now.
  at::Tensor full(const at::Tensor& parameter) const;

  /// Casts every parameter. Gradients must not be set.
  void cast_to_low_precision();
  /// Restores the full-precision parameters. A parameter that was written while
  /// it was cast keeps the written values.
  void restore();

 private:
  std::vector<at::Tensor> parameters_;
  c10::ScalarType dtype_;
  /// The full-precision values while the parameters are cast.
  std::vector<at::Tensor> full_;
  /// The version counters of the parameters at the cast.
  std::vector<int64_t> versions_;
};

/// Returns `tensor`, plain or a DTensor, in another dtype, detached.
at::Tensor in_dtype(const at::Tensor& tensor, c10::ScalarType dtype);

} // namespace weft::data_parallel
