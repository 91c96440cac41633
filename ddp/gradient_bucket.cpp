#include "ddp/gradient_bucket.h"

#include <utility>

#include <torch/torch.h>

#include "ddp/module_state.h"
#include "dtensor/dtensor_impl.h"

namespace weft::ddp {
namespace {

/// A view of `flat` from `offset` that lies like `local`, if `local` is dense.
at::Tensor
view_like(const at::Tensor& flat, int64_t offset, const at::Tensor& local) {
  const auto strides = local.is_non_overlapping_and_dense()
                           ? local.strides().vec()
                           : dtensor::row_major_strides(local.sizes());
  // Detached: a tensor of its own, so that users may detach_() a gradient.
  return flat.as_strided(local.sizes(), strides, offset).detach();
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// `value` as a tensor that does not change the other operand's dtype.
at::Tensor as_operand(double value) {
  auto operand = at::scalar_tensor(value, at::kDouble);
  operand.unsafeGetTensorImpl()->set_wrapped_number(true);
  return operand;
}

} // namespace

GradientBucket::GradientBucket(
    std::vector<size_t> indices,
    const std::vector<at::Tensor>& parameters,
    std::optional<dtensor::DTensorSpec> pending,
    bool has_flag)
    : pending_(std::move(pending)), has_flag_(has_flag) {
  int64_t numel = has_flag ? 1 : 0;
  for (const at::Tensor& parameter : parameters) {
    numel += local_part(parameter).numel();
  }
  flat_ = at::zeros({numel}, local_part(parameters.at(0)).options());
  int64_t offset = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    const auto local = local_part(parameter);
    Slot slot{.parameter = indices.at(i), .view = {}, .gradient = {}};
    slot.view = view_like(flat_, offset, local);
    const auto* impl = dtensor::dtensor_impl(parameter);
    slot.gradient =
        impl ? dtensor::make_dtensor(
                   slot.view, impl->spec(), impl->sizes(), impl->strides())
             : slot.view;
    slots_.push_back(std::move(slot));
    offset += local.numel();
  }
}

void GradientBucket::put(size_t slot, const at::Tensor& local, double divisor) {
  auto view = slots_[slot].view;
  if (is_same_memory(view, local)) {
    if (divisor != 1.0) {
      view.div_(divisor);
    }
  } else if (divisor != 1.0) {
    at::div_out(view, local, as_operand(divisor));
  } else {
    view.copy_(local);
  }
}

void GradientBucket::put_nothing(size_t slot) {
  auto view = slots_[slot].view;
  view.zero_();
}

const at::Tensor& GradientBucket::gradient_before_reduction(size_t slot) {
  const auto& gradient = slots_[slot].gradient;
  if (pending_) {
    dtensor::dtensor_impl(gradient)->reset_local(slots_[slot].view, *pending_);
  }
  return gradient;
}

at::Tensor GradientBucket::flag() const {
  return flat_.narrow(0, flat_.numel() - 1, 1);
}

void GradientBucket::raise_flag() {
  if (has_flag_) {
    flag().fill_(1);
  }
}

bool GradientBucket::is_flag_raised() const {
  return has_flag_ && !flat_.is_meta() &&
         at::real(flag()).item<double>() != 0.0;
}

void GradientBucket::lower_flag() {
  if (has_flag_) {
    flag().zero_();
  }
}

} // namespace weft::ddp
