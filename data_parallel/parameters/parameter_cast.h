#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace weft::ddp {

/// Parameters that are computed with in low precision and kept in full. Modules
/// hold their parameters in members, so the tensors stay and their data are
/// exchanged.
/// Source: torch/nn/parallel/distributed.py, _root_copy_hook.
class ParameterCast {
 public:
  ParameterCast(std::vector<at::Tensor> parameters, c10::ScalarType dtype);
  ~ParameterCast();
  ParameterCast(const ParameterCast&) = delete;
  ParameterCast& operator=(const ParameterCast&) = delete;

  bool is_low_precision() const { return !full_.empty(); }

  /// The values of a parameter in full precision; undefined for one that is not
  /// cast, or not now.
  at::Tensor full(const at::Tensor& parameter) const;

  /// Gives every parameter its values in `dtype`; gradients must be elsewhere.
  void cast_to_low_precision();
  /// Gives them their own values back, or what was written to them meanwhile.
  void restore();

 private:
  std::vector<at::Tensor> parameters_;
  c10::ScalarType dtype_;
  /// The values in full precision while the parameters are low.
  std::vector<at::Tensor> full_;
  /// Of the parameters when they became low.
  std::vector<int64_t> versions_;
};

/// `tensor`, plain or a DTensor, in another dtype; no part of a graph.
at::Tensor in_dtype(const at::Tensor& tensor, c10::ScalarType dtype);

} // namespace weft::ddp
