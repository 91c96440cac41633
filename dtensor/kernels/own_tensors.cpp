// Ops in which libtorch creates plain tensors itself. Their kernels place these
// tensors on the mesh of the operands.
#include <algorithm>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/region.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

// Runs an op on full tensors. This is for ops whose inputs are seldom large.
void run_replicated(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    torch::jit::Stack* stack) {
  RegionDims dims;
  dims.arguments.assign(
      op.schema().arguments().size(), RegionDims::kReplicated);
  dims.returns.assign(op.schema().returns().size(), RegionDims::kReplicated);
  run_region(op, *stack, dims, op.schema().name());
}

// Returns one grid per sample: [N, H, W, 2] or [N, D, H, W, 3].
at::Tensor affine_grid_generator(
    const at::Tensor& theta,
    c10::SymIntArrayRef size,
    bool align_corners) {
  const char* name = "affine_grid_generator";
  const auto common = common_spec({&theta});
  const auto t = place(theta, common);
  Placements placements;
  for (const auto& placement : spec_of(t).placements()) {
    placements.push_back(placement.is_shard(0) ? placement : Replicate());
  }
  auto spec = common.with(placements);
  if (has_empty_part(spec, t.sizes())) {
    placements.assign(placements.size(), Replicate());
    spec = common.with(placements);
  }
  const auto local = to_local_impl(t, spec, placements, name);
  const auto whole = C10_AS_INTARRAYREF_SLOW(size);
  auto part = whole.vec();
  part.at(0) = local.size(0);
  std::vector<int64_t> sizes{whole[0]};
  sizes.insert(sizes.end(), whole.begin() + 2, whole.end());
  sizes.push_back(static_cast<int64_t>(whole.size()) - 2);
  return from_local_impl(
      at::affine_grid_generator(local, part, align_corners),
      spec,
      sizes,
      row_major_strides(sizes),
      name);
}

// Passes plain zeros as one zero without dims, which may be mixed with
// DTensors. The gradient of index_put_ writes zeros that libtorch creates as a
// plain tensor. Above autograd only.
at::Tensor index_put(
    c10::DispatchKeySet keys,
    const at::Tensor& self,
    const c10::List<std::optional<at::Tensor>>& indices,
    const at::Tensor& values,
    bool accumulate) {
  const auto others = keys.remove(c10::DispatchKey::AutogradPrivateUse3)
                          .add(c10::DispatchKey::AutogradOther)
                          .add(c10::DispatchKey::PrivateUse3);
  const bool own = is_dtensor(self) && !is_dtensor(values) &&
                   values.dim() != 0 && !values.requires_grad() &&
                   !values.any().item<bool>();
  return at::_ops::index_put::redispatch(
      others, self, indices, own ? values.new_zeros({}) : values, accumulate);
}

} // namespace

std::set<std::string> register_own_tensors(
    torch::Library& above,
    torch::Library& below) {
  std::set<std::string> names;
  above.impl("index_put", TORCH_FN(index_put));
  for (auto* library : {&above, &below}) {
    library->impl("affine_grid_generator", TORCH_FN(affine_grid_generator));
  }
  names.insert("aten::affine_grid_generator");
  for (const char* name :
       {"combinations",
        "ctc_loss.IntList",
        "ctc_loss.Tensor",
        "nanquantile",
        "nanquantile.scalar",
        "quantile",
        "quantile.scalar"}) {
    for (auto* library : {&above, &below}) {
      library->impl(
          name, torch::CppFunction::makeFromBoxedFunction<&run_replicated>());
    }
    names.insert(std::string("aten::") + name);
  }
  return names;
}

// nn::MultiheadAttention appends plain zeros to keys, values and masks
// (add_zero_attn, add_bias_kv). All ranks have the same zeros, so cat() treats
// a plain tensor of zeros as replicated.

namespace {

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && !is_dtensor(tensor);
}

bool is_plain_zeros(const at::Tensor& tensor) {
  return is_plain(tensor) && !tensor.requires_grad() &&
         !tensor.any().item<bool>();
}

} // namespace

at::Tensor
cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim) {
  const auto others = keys.remove(c10::DispatchKey::AutogradPrivateUse3)
                          .add(c10::DispatchKey::AutogradOther)
                          .add(c10::DispatchKey::PrivateUse3);
  if (std::ranges::none_of(tensors, is_plain)) {
    return at::_ops::cat::redispatch(others, tensors, dim);
  }
  std::vector<at::Tensor> placed(tensors.begin(), tensors.end());
  DTensorSpec common;
  for (const auto& tensor : placed) {
    common = common.mesh_ndim() == 0 ? common_spec({&tensor}) : common;
  }
  for (auto& tensor : placed) {
    if (common.mesh_ndim() != 0 && is_plain_zeros(tensor)) {
      tensor = place(tensor, common);
    }
  }
  return at::_ops::cat::redispatch(others, placed, dim);
}

// value_selecting_reduction_backward() is the gradient of max, min, median,
// mode, kthvalue, topk and sort along a dim.

namespace {

// Returns the placements with `dim` replicated. Other dims stay sharded,
// because lines along `dim` have independent gradients.
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
      "elements. Pass num_classes.");
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
  // A rank without elements does not call at::one_hot(), which throws for an
  // empty tensor if `classes` is 0.
  const auto hot = local.numel() == 0 ? at::zeros(local_sizes, local.options())
                                      : at::one_hot(local, classes);
  return from_local_impl(hot, spec, sizes, row_major_strides(sizes), "one_hot");
}

} // namespace weft::dtensor::kernels
