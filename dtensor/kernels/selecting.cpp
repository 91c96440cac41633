// Ops for which libtorch makes plain tensors of its own: the gradient of max,
// min, median, mode, kthvalue, topk and sort along a dim, and one_hot.

#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

// Any other dim may be cut: each line along `dim` has its own gradients.
Placements cut_elsewhere(const DTensorSpec& spec, int64_t dim) {
  Placements placements;
  for (const auto& placement : spec.placements()) {
    const bool stays = placement.is_shard() && placement.tensor_dim() != dim;
    placements.push_back(stays ? placement : Replicate());
  }
  return placements;
}

int64_t class_count(const at::Tensor& self, int64_t num_classes) {
  if (num_classes >= 0) {
    return num_classes;
  }
  TORCH_CHECK_VALUE(
      self.numel() > 0,
      "[one_hot] num_classes cannot be inferred from a tensor without "
      "elements. Give it.");
  return self.max().item<int64_t>() + 1;
}

} // namespace

at::Tensor value_selecting_reduction_backward(
    const at::Tensor& grad,
    int64_t dim,
    const at::Tensor& indices,
    c10::SymIntArrayRef symbolic_sizes,
    bool keepdim) {
  const char* name = "value_selecting_reduction_backward";
  const auto sizes = C10_AS_INTARRAYREF_SLOW(symbolic_sizes);
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t at_dim = ndim == 0 ? 0 : (dim + ndim) % ndim;
  const auto common = common_spec({&grad, &indices});
  const bool reduced = !keepdim && ndim > 0;
  auto values = place(grad, common);
  auto positions = place(indices, common);
  values = reduced ? values.unsqueeze(at_dim) : values;
  positions = reduced ? positions.unsqueeze(at_dim) : positions;
  const auto placements = cut_elsewhere(
      spec_of(values).has_shard() ? spec_of(values) : spec_of(positions),
      at_dim);
  const auto spec = common.with(placements);
  const auto v = to_local_impl(values, spec, placements, name);
  const auto i = to_local_impl(positions, spec, placements, name);
  auto local = v.sizes().vec();
  if (ndim > 0) {
    local[at_dim] = sizes[at_dim];
  }
  return from_local_impl(
      at::zeros(local, v.options()).scatter(at_dim, i, v),
      spec,
      sizes,
      row_major_strides(sizes),
      name);
}

at::Tensor one_hot(const at::Tensor& self, int64_t num_classes) {
  const at::NoGradGuard no_grad;
  const auto classes = class_count(self, num_classes);
  const auto spec = spec_of(self).without_partial();
  const auto local = to_local_impl(self, spec, spec.placements(), "one_hot");
  auto sizes = self.sizes().vec();
  sizes.push_back(classes);
  auto local_sizes = local.sizes().vec();
  local_sizes.push_back(classes);
  // Without a look at the values where a rank has none.
  const auto hot = local.numel() == 0 ? at::zeros(local_sizes, local.options())
                                      : at::one_hot(local, classes);
  return from_local_impl(hot, spec, sizes, row_major_strides(sizes), "one_hot");
}

} // namespace weft::dtensor::kernels
