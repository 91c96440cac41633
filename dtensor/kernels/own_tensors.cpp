// More ops in which libtorch makes plain tensors of its own: see selecting.cpp.

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/region.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

// Ops that are seldom large, on whole tensors.
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

// One grid a sample: [N, H, W, 2] or [N, D, H, W, 3].
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

// The gradient of index_put_ puts zeros of libtorch's own making. Above
// autograd only.
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

} // namespace weft::dtensor::kernels
