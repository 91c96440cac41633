#include "ddp/reducer/gradient_kind.h"

#include "data_parallel/parameters/module_state.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::ddp {
namespace {

std::optional<dtensor::DTensorSpec> partial_spec(const at::Tensor& gradient) {
  const auto* impl = dtensor::dtensor_impl(gradient);
  return impl && ddp::is_partial(impl->spec()) ? std::optional(impl->spec())
                                               : std::nullopt;
}

} // namespace

bool is_partial(const dtensor::DTensorSpec& spec) {
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_partial() && spec.mesh().size(i) > 1) {
      return true;
    }
  }
  return false;
}

int64_t kind_of(const at::Tensor& gradient) {
  if (data_parallel::local_part(gradient).is_sparse()) {
    return kSparseKind;
  }
  const auto pending = partial_spec(gradient);
  int64_t kind = 0;
  for (int64_t i = 0; pending && i < pending->mesh_ndim(); ++i) {
    kind |= pending->placement(i).is_partial() ? int64_t{1} << i : 0;
  }
  return kind;
}

std::optional<dtensor::DTensorSpec> partial_of_kind(
    dtensor::DTensorSpec spec,
    int64_t kind) {
  if (kind <= 0 || kind == kSparseKind) {
    return std::nullopt;
  }
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if ((kind >> i & 1) != 0) {
      spec = spec.with(i, dtensor::Partial());
    }
  }
  return spec;
}

} // namespace weft::ddp
