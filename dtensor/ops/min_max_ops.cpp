// Maxima and minima along sharded dims, and their indices. See
// Note [Cross-shard reductions].

#include <limits>
#include <optional>
#include <tuple>

#include <ATen/Dispatch.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/ops/cross_shard_reduction.h"
#include "dtensor/tensor/autograd.h"

namespace weft::dtensor {
namespace {

struct MinMax {
  at::Tensor values;
  at::Tensor indices;
};

constexpr int64_t kNoIndex = std::numeric_limits<int64_t>::max();

at::Scalar neutral(at::ScalarType dtype, bool largest) {
  if (at::isFloatingType(dtype)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return largest ? -infinity : infinity;
  }
  at::Scalar value;
  AT_DISPATCH_INTEGRAL_TYPES_AND(at::kBool, dtype, "neutral", [&] {
    using Limits = std::numeric_limits<scalar_t>;
    value = largest ? Limits::lowest() : Limits::max();
  });
  return value;
}

MinMax along(const at::Tensor& tensor, int64_t dim, bool keepdim, bool max) {
  auto [values, indices] =
      max ? at::max(tensor, dim, keepdim) : at::min(tensor, dim, keepdim);
  return {values, indices};
}

// Selects the best of all ranks' pairs. Among equal values, and among NaNs, it
// is the one with the smallest global index.
MinMax choose(const MinMax& all, bool max) {
  const auto best = max ? at::amax(all.values, 0) : at::amin(all.values, 0);
  auto chosen = all.values.eq(best);
  if (all.values.is_floating_point()) {
    chosen = chosen.logical_or(all.values.isnan());
  }
  return {best, at::amin(all.indices.masked_fill(~chosen, kNoIndex), 0)};
}

MinMax join(MinMax part, const CrossShardReduction& reduction, bool max) {
  if (part.values.numel() == 0) {
    return part;
  }
  for (const int64_t m : reduction.joined) {
    part = choose(
        {gather_parts(reduction, m, part.values, "extremum"),
         gather_parts(reduction, m, part.indices, "extremum")},
        max);
  }
  return part;
}

// Returns this rank's maximum or minimum along one dim, with its index in the
// global dim.
MinMax local_extremum(
    const CrossShardReduction& reduction,
    c10::IntArrayRef global_sizes,
    bool keepdim,
    bool max) {
  const auto& local = reduction.local;
  const int64_t dim = reduction.dims.at(0);
  if (reduction.joined.empty()) {
    return along(local, dim, keepdim, max);
  }
  if (local.size(dim) == 0) {
    auto sizes = local.sizes().vec();
    if (keepdim) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + dim);
    }
    return {
        at::full(sizes, neutral(local.scalar_type(), max), local.options()),
        at::full(sizes, kNoIndex, local.options().dtype(at::kLong))};
  }
  auto part = along(local, dim, keepdim, max);
  part.indices.add_(local_box(reduction.input, global_sizes).offset[dim]);
  return part;
}

std::tuple<at::Tensor, at::Tensor>
extremum_dim(const at::Tensor& self, int64_t dim, bool keepdim, bool max) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (self.dim() == 0) {
    const auto r = reduce_parts(self, {}, false, Parts::kAny, "max");
    const auto part = along(r.local, dim, keepdim, max);
    return {wrap_reduction(r, part.values), wrap_reduction(r, part.indices)};
  }
  const auto reduction =
      reduce_parts(self, at::IntArrayRef{dim}, keepdim, Parts::kBoxes, "max");
  const auto part = join(
      local_extremum(reduction, self.sizes(), keepdim, max), reduction, max);
  return {
      wrap_reduction(reduction, part.values),
      wrap_reduction(reduction, part.indices)};
}

std::tuple<at::Tensor, at::Tensor>
max_dim(const at::Tensor& self, int64_t dim, bool keepdim) {
  return extremum_dim(self, dim, keepdim, true);
}

std::tuple<at::Tensor, at::Tensor>
min_dim(const at::Tensor& self, int64_t dim, bool keepdim) {
  return extremum_dim(self, dim, keepdim, false);
}

// Converts an index in this rank's flattened box to the index in the flattened
// full tensor.
int64_t
whole_index(int64_t index, const LocalBox& box, c10::IntArrayRef global_sizes) {
  int64_t whole = 0;
  int64_t stride = 1;
  for (auto d = static_cast<int64_t>(global_sizes.size()) - 1; d >= 0; --d) {
    whole += (box.offset[d] + index % box.sizes[d]) * stride;
    index /= box.sizes[d];
    stride *= global_sizes[d];
  }
  return whole;
}

// Returns the maximum or minimum of this rank's part, with its index in the
// flattened full tensor.
MinMax flat_extremum(
    const CrossShardReduction& reduction,
    c10::IntArrayRef global_sizes,
    bool max) {
  const auto& local = reduction.local;
  const auto options = local.options();
  if (local.numel() == 0 && !reduction.joined.empty()) {
    return {
        at::full({}, neutral(local.scalar_type(), max), options),
        at::full({}, kNoIndex, options.dtype(at::kLong))};
  }
  auto part = along(local.reshape({-1}), 0, false, max);
  if (!reduction.joined.empty()) {
    const auto box = local_box(reduction.input, global_sizes);
    part.indices.fill_(
        whole_index(part.indices.item<int64_t>(), box, global_sizes));
  }
  return part;
}

at::Tensor arg_extremum(
    const at::Tensor& self,
    std::optional<int64_t> dim,
    bool keepdim,
    bool max) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (dim && self.dim() > 0) {
    return std::get<1>(extremum_dim(self, *dim, keepdim, max));
  }
  const auto reduction =
      reduce_parts(self, {}, keepdim, Parts::kBoxes, "argmax");
  const auto part =
      join(flat_extremum(reduction, self.sizes(), max), reduction, max);
  return wrap_reduction(reduction, part.indices.view(reduction.sizes));
}

at::Tensor
argmax(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  return arg_extremum(self, dim, keepdim, true);
}

at::Tensor
argmin(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  return arg_extremum(self, dim, keepdim, false);
}

} // namespace

void register_min_max(torch::Library& library, std::set<std::string>& taken) {
  const auto add = [&](const char* name, auto function) {
    library.impl(name, function);
    taken.insert(std::string("aten::") + name);
  };
  add("max.dim", TORCH_FN(max_dim));
  add("min.dim", TORCH_FN(min_dim));
  add("argmax", TORCH_FN(argmax));
  add("argmin", TORCH_FN(argmin));
}

} // namespace weft::dtensor
