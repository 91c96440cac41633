// The path of a gradient into its bucket and back.
#include <cmath>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include "ddp/reducer/gradient_kind.h"
#include "ddp/reducer/reducer.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "mesh/error/error.h"

namespace weft::ddp {

void Reducer::place(Parameter& parameter) {
  if (!parameter.is_dtensor) {
    return;
  }
  const auto* impl = dtensor::dtensor_impl(parameter.state.tensor);
  const auto grad = gradient(parameter);
  auto* grad_impl = dtensor::dtensor_impl(grad);
  if (!grad_impl) {
    return;
  }
  const auto& want = parameter.pending ? *parameter.pending : impl->spec();
  if (grad_impl->spec() == want) {
    return;
  }
  if (is_partial(grad_impl->spec())) {
    // It is Partial in another way than in the first backward: reduce it here.
    set_gradient(
        parameter,
        dtensor::redistribute(
            grad, grad_impl->spec().without_partial().placements()));
  } else if (grad_impl->spec().has_partial()) {
    grad_impl->reset_local(
        grad_impl->local(), grad_impl->spec().without_partial());
  }
  if (parameter.pending) {
    dtensor::make_gradient_partial(gradient(parameter), want);
  }
}

void Reducer::check_gradient(const Parameter& parameter) const {
  const auto grad = gradient(parameter);
  const auto local = data_parallel::local_part(grad);
  WEFT_CHECK(
      local.is_sparse() == parameter.is_sparse,
      "ddp",
      where(),
      "the gradient of ",
      parameter.state.name,
      parameter.is_sparse ? " was sparse in the first step and is dense now. "
                          : " is sparse and was dense in the first step. ",
      "Set EmbeddingOptions.sparse before the model is wrapped.");
  WEFT_CHECK(
      !grad.requires_grad(),
      "ddp",
      where(),
      "the gradient of ",
      parameter.state.name,
      " is itself part of a graph, but DistributedDataParallel cannot reduce "
      "the gradients of backward() with create_graph. Run it under no_sync() "
      "or on module().");
  const auto own = data_parallel::local_part(parameter.state.tensor);
  WEFT_CHECK(
      local.sizes() == own.sizes() &&
          c10::isComplexType(local.scalar_type()) ==
              c10::isComplexType(parameter.full_dtype),
      "ddp",
      where(),
      "the gradient of ",
      parameter.state.name,
      " changed from ",
      own.sizes(),
      " ",
      parameter.full_dtype,
      " to ",
      local.sizes(),
      " ",
      local.scalar_type(),
      " on this rank. Wrap the model after it was converted or placed.");
}

// Returns true if .grad() shares memory with the bucket after backward.
bool Reducer::is_viewed(const Parameter& parameter) const {
  const auto& options = config_.options;
  const bool keeps_low = options.mixed_precision &&
                         options.mixed_precision->keep_low_precision_grads;
  return parameter.bucket && options.gradient_as_bucket_view &&
         buckets_[*parameter.bucket].layout().memory == BucketMemory::kFlat &&
         (keeps_low || parameter.reduce_dtype == parameter.full_dtype);
}

void Reducer::copy_to_bucket(Parameter& parameter) {
  if (!parameter.bucket && !parameter.is_dtensor) {
    return;
  }
  if (!gradient(parameter).defined()) {
    copy_unused_to_bucket(parameter);
    return;
  }
  place(parameter);
  if (!parameter.bucket) {
    return;
  }
  auto& bucket = buckets_[*parameter.bucket];
  try {
    check_gradient(parameter);
    if (const double by = divisor(bucket); std::isinf(by)) {
      bucket.fill_with_zeros(parameter.slot);
    } else {
      bucket.copy_to_bucket(
          parameter.slot, data_parallel::local_part(gradient(parameter)), by);
    }
  } catch (const c10::Error&) {
    // All replicas throw at the end. See Note [Order of reductions].
    parameter.problem = GradientProblem::kUnusable;
    own_error_ = own_error_ ? own_error_ : std::current_exception();
    bucket.fill_with_zeros(parameter.slot);
    return;
  }
  if (is_viewed(parameter) && !bucket.layout().is_batched) {
    set_gradient(parameter, bucket.gradient_before_reduction(parameter.slot));
  }
}

void Reducer::copy_unused_to_bucket(Parameter& parameter) {
  if (!parameter.bucket) {
    return;
  }
  const auto grad = gradient(parameter);
  if (grad.defined() && parameter.problem == GradientProblem::kNone) {
    if (!parameter.is_used) {
      parameter.untouched = data_parallel::local_part(grad).clone();
    }
    copy_to_bucket(parameter);
  } else {
    buckets_[*parameter.bucket].fill_with_zeros(parameter.slot);
  }
}

// Moves an accumulated gradient into its bucket, so that it does not exist in
// memory twice.
void Reducer::stash(Parameter& parameter) {
  if (!is_viewed(parameter) || parameter.reduce_dtype != parameter.full_dtype) {
    return;
  }
  place(parameter);
  try {
    check_gradient(parameter);
  } catch (const c10::Error&) {
    // The reduction checks the gradient again and reports the error on all
    // replicas.
    return;
  }
  auto& bucket = buckets_[*parameter.bucket];
  bucket.stash(parameter.slot, data_parallel::local_part(gradient(parameter)));
  set_gradient(parameter, bucket.gradient_before_reduction(parameter.slot));
}

void Reducer::finalize_grads() {
  for (auto& bucket : buckets_) {
    for (size_t slot = 0; slot < bucket.slots().size(); ++slot) {
      finalize_grad(bucket, slot);
    }
  }
}

void Reducer::finalize_grad(GradientBucket& bucket, size_t slot_index) {
  const auto& slot = bucket.slots()[slot_index];
  auto& parameter = parameters_[slot.parameter];
  const auto grad = gradient(parameter);
  if (!parameter.is_used_anywhere) {
    if (parameter.untouched.defined()) {
      data_parallel::local_part(grad).copy_(parameter.untouched);
    }
    return;
  }
  if (bucket.layout().memory == BucketMemory::kSparse) {
    set_gradient(parameter, slot.view);
    return;
  }
  if (is_viewed(parameter)) {
    set_gradient(parameter, slot.gradient);
  } else if (!grad.defined()) {
    const auto* impl = dtensor::dtensor_impl(parameter.state.tensor);
    const auto own = slot.view.to(parameter.full_dtype, false, /*copy=*/true);
    set_gradient(
        parameter,
        impl ? dtensor::make_dtensor(
                   own, impl->spec(), impl->sizes(), impl->strides())
             : own);
  } else if (auto local = data_parallel::local_part(grad);
             !local.is_same(slot.view)) {
    local.copy_(slot.view);
  }
  if (auto* impl = dtensor::dtensor_impl(gradient(parameter));
      impl && impl->spec().has_partial()) {
    impl->reset_local(
        impl->local(), dtensor::dtensor_impl(parameter.state.tensor)->spec());
  }
}

// Gradients of parameters that are cast to low precision for forward.

const at::Tensor& Reducer::gradient(const Parameter& parameter) const {
  return parameter.state.tensor.grad();
}

void Reducer::set_gradient(Parameter& parameter, const at::Tensor& gradient) {
  parameter.state.tensor.mutable_grad() = gradient;
}

// Casts the first gradient, which has the low-precision dtype, to full
// precision. Autograd then accumulates later gradients in full precision.
void Reducer::upcast(Parameter& parameter) {
  if (!parameter.is_cast) {
    return;
  }
  auto& gradient = parameter.state.tensor.mutable_grad();
  if (gradient.defined() && gradient.scalar_type() != parameter.full_dtype) {
    gradient = data_parallel::in_dtype(gradient, parameter.full_dtype);
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
