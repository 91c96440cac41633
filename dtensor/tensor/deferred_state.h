#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// One recorded step of an initialization.
struct InitStep {
  enum class Kind { kFill, kUniform, kNormal, kScale, kShift, kFillSlice };
  Kind kind;
  /// The parameters of the step. kFill: the value `a`. kUniform: the bounds `a`
  /// and `b`. kNormal: the mean `a` and the standard deviation `b`. kScale
  /// multiplies by `a`, and kShift adds `a`.
  double a = 0;
  double b = 0;
  /// Only for kFillSlice, which fills select(dim, index) with `a`.
  int64_t dim = 0;
  int64_t index = 0;

  /// Returns true if the step does not depend on earlier values.
  bool overwrites_all() const;
};

/// The pending initialization of a tensor created in DeferredInit.
struct DeferredState {
  /// The steps, run in order on the bytes of the reserved memory. Without steps
  /// these bytes are the value.
  std::vector<InitStep> steps;
  /// Set if the tensor is select(dim, index) of another one with pending random
  /// values, e.g. the padding row of an embedding. Filling it is a step of that
  /// tensor.
  std::shared_ptr<DeferredState> whole;
  int64_t dim = 0;
  int64_t index = 0;

  /// The name of the random stream that a tensor shares with its clones, so
  /// that they get equal values. The first of them that is materialized sets
  /// it. Null if the tensor has no clones.
  std::shared_ptr<std::string> stream;

  /// Returns true if the first step overwrites all bytes.
  bool overwrites() const;

  bool is_random() const;
};

bool is_deferred(const at::Tensor& tensor);
/// Checks that a DTensor is materialized, and updates it if it is a copied view
/// (see refresh()). Call it before reading the local tensor of a user's
/// DTensor. Collective: all ranks of the mesh, for a copied view. Throws:
/// c10::ValueError naming `op` and the tensor if it is not materialized.
void check_materialized(const at::Tensor& tensor, std::string_view op);

} // namespace weft::dtensor
