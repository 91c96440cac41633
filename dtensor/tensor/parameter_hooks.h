#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {

/// Hooks of a parameter that holds a smaller shard between its uses, as in
/// fully sharded data parallelism. Views of the parameter share its hooks, so
/// that backward finds them.
class ParameterHooks {
 public:
  virtual ~ParameterHooks() = default;
  /// Called before an op reads the placement of the parameter or the memory of
  /// a view of it; may reset_local() the parameter. `is_forward` is true for an
  /// op of a module's forward(), e.g. linear().
  virtual void before_use(bool is_forward) = 0;
  /// Called before autograd accumulates the parameter's gradient.
  virtual void before_gradient() = 0;
  /// The spec of the gradient, independent of the parameter's current one.
  virtual const DTensorSpec& gradient_spec() const = 0;
};

/// Must be called before an op of a module reads the placement of `tensor`.
inline void before_forward_use(const at::Tensor& tensor) {
  const auto* impl = dtensor_impl(tensor);
  if (impl && impl->parameter_hooks) {
    impl->parameter_hooks->before_use(/*is_forward=*/true);
  }
}

/// Registers a pre-hook on the grad_fn of `output`. In backward it calls
/// before_use(false) for each of `parameters` that has ParameterHooks, before
/// the grad_fn runs. This is needed for ops whose autograd nodes save local
/// tensors, which have no ParameterHooks. Does nothing if `output` has no
/// grad_fn.
void use_in_backward(
    const at::Tensor& output,
    c10::ArrayRef<const at::Tensor*> parameters);

} // namespace weft::dtensor
