// Gradients of parameters that are computed with in low precision.
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include "ddp/reducer/reducer.h"

namespace weft::ddp {

const at::Tensor& Reducer::gradient(const Parameter& parameter) const {
  return parameter.state.tensor.grad();
}

void Reducer::set_gradient(Parameter& parameter, const at::Tensor& gradient) {
  parameter.state.tensor.mutable_grad() = gradient;
}

// The first gradient that comes is of the parameter's own dtype; what autograd
// adds to it later is added in full precision.
void Reducer::upcast(Parameter& parameter) {
  if (!parameter.is_cast) {
    return;
  }
  auto& gradient = parameter.state.tensor.mutable_grad();
  if (gradient.defined() && gradient.scalar_type() != parameter.full_dtype) {
    gradient = in_dtype(gradient, parameter.full_dtype);
  }
  if (*paused_ != 0 && !is_restore_queued_) {
    is_restore_queued_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] {
          const std::lock_guard lock(self->mutex_);
          self->restore_precision();
        });
  }
}

at::Tensor Reducer::full_precision(const at::Tensor& parameter) const {
  const std::lock_guard lock(mutex_);
  return config_.cast ? config_.cast->full(parameter) : at::Tensor();
}

void Reducer::end_forward_without_backward() {
  if (has_cast_parameters_) {
    restore_precision();
  }
}

void Reducer::restore_precision() {
  is_restore_queued_ = false;
  has_cast_parameters_ = false;
  if (config_.cast && config_.cast->is_low_precision()) {
    config_.cast->restore();
    start_search();
  }
}

} // namespace weft::ddp
