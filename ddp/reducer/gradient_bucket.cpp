#include "ddp/reducer/gradient_bucket.h"

#include <utility>

#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::ddp {
namespace {

at::Tensor
view_like(const at::Tensor& flat, int64_t offset, const at::Tensor& local) {
  const auto strides = local.is_non_overlapping_and_dense()
                           ? local.strides().vec()
                           : dtensor::row_major_strides(local.sizes());
  // detach_(), which users may call on a gradient, throws on a view.
  return flat.as_strided(local.sizes(), strides, offset).detach();
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

} // namespace

GradientBucket::GradientBucket(
    std::vector<size_t> indices,
    std::vector<at::Tensor> parameters,
    BucketLayout layout)
    : layout_(std::move(layout)), parameters_(std::move(parameters)) {
  for (const size_t index : indices) {
    slots_.push_back({.parameter = index, .view = {}, .gradient = {}});
  }
}

void GradientBucket::allocate() {
  if (flat_.defined() || layout_.memory != BucketMemory::kFlat) {
    return;
  }
  int64_t numel = layout_.has_flag ? 1 : 0;
  for (const at::Tensor& parameter : parameters_) {
    numel += data_parallel::local_part(parameter).numel();
  }
  const auto first = data_parallel::local_part(parameters_.at(0));
  flat_ = at::zeros({numel}, first.options().dtype(layout_.dtype));
  int64_t offset = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i];
    const auto local = data_parallel::local_part(parameter);
    auto& slot = slots_[i];
    slot.view = view_like(flat_, offset, local);
    const auto* impl = dtensor::dtensor_impl(parameter);
    slot.gradient =
        impl ? dtensor::make_dtensor(
                   slot.view, impl->spec(), impl->sizes(), impl->strides())
             : slot.view;
    offset += local.numel();
  }
}

void GradientBucket::release() {
  flat_ = at::Tensor();
  for (auto& slot : slots_) {
    slot.view = at::Tensor();
    slot.gradient = at::Tensor();
    slot.source = at::Tensor();
  }
}

at::Tensor GradientBucket::gradients_only() const {
  return layout_.has_flag ? flat_.narrow(0, 0, flat_.numel() - 1) : flat_;
}

std::vector<at::Tensor> GradientBucket::views() const {
  std::vector<at::Tensor> views;
  for (const auto& slot : slots_) {
    views.push_back(slot.view);
  }
  return views;
}

void GradientBucket::copy_to_bucket(
    size_t slot,
    const at::Tensor& local,
    double divisor) {
  if (layout_.memory != BucketMemory::kFlat) {
    slots_[slot].view = local;
    if (divisor != 1.0) {
      slots_[slot].view.div_(divisor);
    }
    return;
  }
  allocate();
  auto& view = slots_[slot].view;
  if (layout_.is_batched) {
    slots_[slot].source = local;
  } else if (is_same_memory(view, local)) {
    if (divisor != 1.0) {
      view.div_(divisor);
    }
  } else {
    data_parallel::copy_divided(view, local, divisor);
  }
}

void GradientBucket::stash(size_t slot, const at::Tensor& local) {
  allocate();
  if (!is_same_memory(slots_[slot].view, local)) {
    slots_[slot].view.copy_(local);
  }
}

void GradientBucket::fill_with_zeros(size_t slot) {
  if (layout_.memory == BucketMemory::kFlat) {
    allocate();
    slots_[slot].source = at::Tensor();
    slots_[slot].view.zero_();
  } else {
    slots_[slot].view =
        at::zeros_like(data_parallel::local_part(parameters_[slot]));
    if (layout_.memory == BucketMemory::kSparse) {
      slots_[slot].view = slots_[slot].view.to_sparse(1);
    }
  }
}

void GradientBucket::fill(double divisor) {
  if (!layout_.is_batched || layout_.memory != BucketMemory::kFlat) {
    return;
  }
  allocate();
  std::vector<at::Tensor> views;
  std::vector<at::Tensor> sources;
  for (auto& slot : slots_) {
    if (slot.source.defined() && !is_same_memory(slot.view, slot.source)) {
      views.push_back(slot.view);
      sources.push_back(slot.source);
    }
    slot.source = at::Tensor();
  }
  if (!views.empty()) {
    at::_foreach_copy_(views, sources);
  }
  if (divisor != 1.0) {
    gradients_only().div_(divisor);
  }
}

const at::Tensor& GradientBucket::gradient_before_reduction(size_t slot) {
  const auto& gradient = slots_[slot].gradient;
  // In the meantime .grad() may have got another spec, with or without Partial.
  if (auto* impl = dtensor::dtensor_impl(gradient)) {
    impl->reset_local(
        slots_[slot].view,
        layout_.pending ? *layout_.pending
                        : dtensor::dtensor_impl(parameters_[slot])->spec());
  }
  return gradient;
}

at::Tensor GradientBucket::flag() const {
  return flat_.narrow(0, flat_.numel() - 1, 1);
}

void GradientBucket::raise_flag() {
  if (layout_.has_flag) {
    allocate();
    flag().fill_(1);
  }
}

bool GradientBucket::is_flag_raised() const {
  return layout_.has_flag && !flat_.is_meta() &&
         at::real(flag()).item<double>() != 0.0;
}

void GradientBucket::lower_flag() {
  if (layout_.has_flag && flat_.defined()) {
    flag().zero_();
  }
}

} // namespace weft::ddp
