#include "dtensor/ops/cross_shard_reduction.h"

#include <algorithm>

#include <torch/torch.h>

#include "dtensor/redistribute/redistribute.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/deferred_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/implicit_redistribution.h"

namespace weft::dtensor {
namespace {

std::vector<int64_t> reduced_dims(
    at::OptionalIntArrayRef dims,
    const at::Tensor& self) {
  std::vector<int64_t> reduced;
  if (dims && !dims->empty()) {
    for (const int64_t d : *dims) {
      reduced.push_back(at::maybe_wrap_dim(d, self.dim()));
    }
  } else {
    for (int64_t d = 0; d < self.dim(); ++d) {
      reduced.push_back(d);
    }
  }
  return reduced;
}

bool contains(const std::vector<int64_t>& dims, int64_t d) {
  return std::ranges::find(dims, d) != dims.end();
}

void set_output(
    CrossShardReduction& reduction,
    c10::IntArrayRef sizes,
    bool keep) {
  std::vector<int64_t> output_dim;
  for (size_t d = 0; d < sizes.size(); ++d) {
    output_dim.push_back(static_cast<int64_t>(reduction.sizes.size()));
    const bool reduced = contains(reduction.dims, static_cast<int64_t>(d));
    if (!reduced || keep) {
      reduction.sizes.push_back(reduced ? 1 : sizes[d]);
    }
  }
  Placements placements;
  for (int64_t m = 0; m < reduction.input.mesh_ndim(); ++m) {
    const auto& placement = reduction.input.placement(m);
    placements.push_back(Replicate());
    if (placement.is_shard()) {
      if (contains(reduction.dims, placement.tensor_dim())) {
        reduction.joined.push_back(m);
      } else {
        placements.back() =
            placement.with_tensor_dim(output_dim[placement.tensor_dim()]);
      }
    }
  }
  reduction.output = reduction.input.with(placements);
}

bool can_stay(
    const CrossShardReduction& reduction,
    Parts parts,
    c10::IntArrayRef sizes) {
  return parts == Parts::kAny ||
         (parts == Parts::kBoxes && has_local_boxes(reduction.input, sizes));
}

} // namespace

bool CrossShardReduction::is_empty() const {
  return std::ranges::any_of(
      dims, [&](int64_t d) { return local.size(d) == 0; });
}

CrossShardReduction reduce_parts(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    bool keepdim,
    Parts parts,
    const char* name) {
  check_materialized(self, name);
  const auto& from = spec_of(self);
  CrossShardReduction reduction;
  reduction.dims = reduced_dims(dims, self);
  reduction.input = from.without_partial();
  if (!can_stay(reduction, parts, self.sizes())) {
    auto placements = reduction.input.placements();
    for (auto& placement : placements) {
      if (placement.is_shard() &&
          contains(reduction.dims, placement.tensor_dim())) {
        placement = Replicate();
      }
    }
    reduction.input = from.with(placements);
  }
  reduction.local = dtensor_impl(self)->local();
  if (!(reduction.input == from)) {
    check_implicit_redistribution(
        name, self, from, reduction.input, [&] { return describe(self); });
    const detail::RedistributeScope move(
        self, from, reduction.input, /*is_implicit=*/true);
    reduction.local = redistribute_local(
        reduction.local, self.sizes(), from, reduction.input, name);
  }
  set_output(reduction, self.sizes(), keepdim);
  return reduction;
}

at::Tensor wrap_reduction(
    const CrossShardReduction& reduction,
    const at::Tensor& local) {
  return make_dtensor(
      local,
      reduction.output,
      reduction.sizes,
      row_major_strides(reduction.sizes));
}

at::Tensor gather_parts(
    const CrossShardReduction& reduction,
    int64_t mesh_dim,
    const at::Tensor& part,
    const char* name) {
  auto& group = reduction.input.mesh().group(mesh_dim);
  auto sizes = part.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  auto all = at::empty(sizes, part.options());
  group.all_gather(all, part.contiguous(), name).wait();
  return all;
}

} // namespace weft::dtensor
