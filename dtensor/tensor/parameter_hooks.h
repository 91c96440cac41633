#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

/// What acts on a parameter that holds a smaller part between its uses, as one
/// of fully sharded data parallelism does. Views that ops make of the parameter
/// share its hooks, so that backward finds them.
class ParameterHooks {
 public:
  virtual ~ParameterHooks() = default;
  /// Before an op reads where the parameter lies, or the memory of a view of
  /// it; may reset_local() the parameter. `is_forward`: the op is one of a
  /// module's forward(), e.g. linear().
  virtual void before_use(bool is_forward) = 0;
  /// Before autograd adds to the parameter's gradient, or takes a new one.
  virtual void before_gradient() = 0;
  /// Where that gradient is to lie, whatever the parameter holds now.
  virtual const DTensorSpec& gradient_spec() const = 0;
};

/// To be called before an op of a module reads where `tensor` lies.
inline void before_forward_use(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  if (impl && impl->parameter_hooks) {
    impl->parameter_hooks->before_use(/*is_forward=*/true);
  }
}

/// Has backward call before_use() of those `parameters` that have hooks before
/// it comes to what lies behind `output`: for ops whose nodes save local parts,
/// which have none.
void use_in_backward(
    const at::Tensor& output,
    c10::ArrayRef<const at::Tensor*> parameters);

} // namespace weft::dtensor
