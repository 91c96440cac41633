#include "dtensor/ops/special_ops.h"

#include <numeric>
#include <optional>
#include <tuple>

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/ops/cross_shard_reduction.h"
#include "dtensor/ops/foreach_ops.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/copied_view.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor {
namespace {

// Returns a spec under which each rank can negate its local tensor. That is
// possible for Partial sums and averages; other Partials become Replicate.
DTensorSpec negatable(const DTensorSpec& spec) {
  auto placements = spec.placements();
  for (auto& placement : placements) {
    if (placement.is_partial() && !placement.is_partial(ReduceOp::kSum) &&
        !placement.is_partial(ReduceOp::kAvg)) {
      placement = Replicate();
    }
  }
  return spec.with(placements);
}

// Returns this rank's values under `spec`. A tensor on no mesh is not
// redistributed.
at::Tensor local_of(const at::Tensor& tensor, const DTensorSpec& spec) {
  const auto* impl = dtensor_impl(tensor);
  if (!impl) {
    return tensor;
  }
  check_materialized(tensor, "local");
  if (impl->spec().mesh_ndim() == 0 || impl->spec() == spec) {
    return impl->local();
  }
  return redistribute_local(
      impl->local(), impl->sizes(), impl->spec(), spec, "local");
}

// --- item, equal, is_same_size ---------------------------------------------

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& spec = spec_of(self);
  TORCH_CHECK_VALUE(
      !spec.has_shard(),
      "[item] ",
      describe(self),
      " is sharded: only one rank has its value. Use full_tensor(x).item(). (",
      spec.mesh().describe_rank(),
      ")");
  // A Partial without dims, such as a loss or a norm, is reduced below.
  TORCH_CHECK_VALUE(
      self.dim() == 0 || !spec.has_partial(),
      "[item] ",
      describe(self),
      " is Partial: no rank has its value. Use full_tensor(x).item(). (",
      spec.mesh().describe_rank(),
      ")");
  return local_of(self, spec.without_partial()).item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto is_on_mesh = [](const at::Tensor& tensor) {
    const auto* impl = dtensor_impl(tensor);
    return impl && impl->spec().mesh_ndim() > 0;
  };
  if (!is_on_mesh(self) && !is_on_mesh(other)) {
    const auto whole = [](const at::Tensor& tensor) {
      const auto* impl = dtensor_impl(tensor);
      return impl ? impl->local() : tensor;
    };
    return at::equal(whole(self), whole(other));
  }
  TORCH_CHECK_VALUE(
      is_dtensor(self) && is_dtensor(other),
      "[equal] mixes a DTensor with a plain tensor. Compare full_tensor(x).");
  if (self.sizes() != other.sizes() ||
      self.scalar_type() != other.scalar_type()) {
    return false;
  }
  const auto spec = spec_of(self).without_partial();
  const auto own = local_of(self, spec);
  const auto others = local_of(other, spec);
  const bool same = at::equal(own, others);
  auto flag = at::full({1}, same ? 1 : 0, at::kLong);
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_shard()) {
      spec.mesh().group(i).all_reduce(flag, ReduceOp::kMin, "equal").wait();
    }
  }
  return flag.item<int64_t>() == 1;
}

bool is_same_size(const at::Tensor& self, const at::Tensor& other) {
  return self.sizes() == other.sizes();
}

// Ignores the strides that libtorch has computed for the full tensor, because
// view() computes those of the local tensor.
at::Tensor reshape_alias(
    const at::Tensor& self,
    c10::SymIntArrayRef size,
    c10::SymIntArrayRef) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return self.view_symint(size);
}

// Every squeeze becomes squeeze.dims, which has a rule. Without explicit dims,
// a local size of 1 would be taken for a global one.
at::Tensor squeeze(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<int64_t> dims(self.dim());
  std::iota(dims.begin(), dims.end(), 0);
  return at::squeeze(self, dims);
}

at::Tensor squeeze_dim(const at::Tensor& self, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::squeeze(self, at::IntArrayRef{dim});
}

// --- lazy views --------------------------------------------------------------

// Computes the values of a lazy view at once and returns a copied view. A local
// tensor that is only marked as conjugated or negated would be sent with the
// values in its memory.
at::Tensor lazy_view(
    const at::Tensor& self,
    const DTensorSpec& spec,
    CopiedView::Values values,
    at::Tensor (*compute)(const at::Tensor&)) {
  auto local = compute(local_of(self, spec));
  auto link = make_copied_view(*dtensor_impl(self), local, spec, values);
  auto view =
      make_dtensor(std::move(local), spec, self.sizes(), self.strides());
  dtensor_impl(view)->copied_view = std::move(link);
  return view;
}

at::Tensor conj(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return lazy_view(
      self,
      spec_of(self),
      CopiedView::Values::kConjugated,
      [](const at::Tensor& local) { return at::conj_physical(local); });
}

at::Tensor neg_view(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return lazy_view(
      self,
      negatable(spec_of(self)),
      CopiedView::Values::kNegated,
      [](const at::Tensor& local) { return at::neg(local); });
}

// --- rrelu -------------------------------------------------------------------

std::tuple<at::Tensor, at::Tensor> leaky_and_noise(
    const at::Tensor& self,
    const at::Tensor& noise,
    const at::Scalar& lower,
    const at::Scalar& upper,
    bool training,
    std::optional<at::Generator> generator) {
  const at::AutoDispatchBelowADInplaceOrView below;
  auto slopes = at::clone(noise);
  auto output = at::rrelu_with_noise(
      self, slopes, lower, upper, training, std::move(generator));
  return {std::move(output), std::move(slopes)};
}

} // namespace

std::set<std::string> register_special_ops(torch::Library& library) {
  std::set<std::string> taken;
  const auto add = [&](const char* name, auto function) {
    library.impl(name, function);
    taken.insert(std::string("aten::") + name);
  };
  add("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  add("equal", TORCH_FN(equal));
  add("is_same_size", TORCH_FN(is_same_size));
  add("_reshape_alias", TORCH_FN(reshape_alias));
  add("squeeze", TORCH_FN(squeeze));
  add("squeeze.dim", TORCH_FN(squeeze_dim));
  register_norms(library, taken);
  register_min_max(library, taken);
  register_statistics(library, taken);
  add("_conj", TORCH_FN(conj));
  add("_neg_view", TORCH_FN(neg_view));
  add("rrelu_with_noise_functional", TORCH_FN(leaky_and_noise));
  taken.merge(register_foreach_ops(library));
  return taken;
}

} // namespace weft::dtensor
