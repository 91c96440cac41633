#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// One recorded step of an initialisation.
struct InitStep {
  enum class Kind { kFill, kUniform, kNormal, kScale, kShift, kFillSlice };
  Kind kind;
  /// fill: value. uniform: from, to. normal: mean, std. scale, shift: by a.
  double a = 0;
  double b = 0;
  /// fill slice: of select(dim, index).
  int64_t dim = 0;
  int64_t index = 0;

  /// It leaves nothing of the values before it.
  bool overwrites_all() const;
};

/// What a tensor made inside DeferredInit still has to become.
struct DeferredState {
  /// Run in order on the bytes of the reserved memory, which are the value if
  /// there are no steps.
  std::vector<InitStep> steps;
  /// The tensor is select(dim, index) of another that has random values to
  /// come, e.g. the padding row of an embedding: filling it is a step of that.
  std::shared_ptr<DeferredState> whole;
  int64_t dim = 0;
  int64_t index = 0;

  /// Shared with clones, which have the same random values to come: the name
  /// that keys them, once one of them is materialized. Null without clones.
  std::shared_ptr<std::string> stream;

  /// The first step leaves nothing of those bytes.
  bool overwrites() const;

  bool is_random() const;
};

bool is_deferred(const at::Tensor& tensor);
/// To be called before the local tensor of a user's DTensor is read: brings a
/// copied view up to date, see refresh(), as all ranks of its mesh do together.
/// Throws: c10::ValueError naming `op` and the tensor if it has not been
/// materialized.
void check_materialized(const at::Tensor& tensor, std::string_view op);

} // namespace weft::dtensor
