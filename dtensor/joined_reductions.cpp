#include "dtensor/joined_reductions.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/autograd.h"
#include "dtensor/deferred_init.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"

namespace weft::dtensor {
namespace {

// A reduction along `dims` of a tensor as it lies: what each rank reduces, and
// where the result is.
struct LocalReduction {
  at::Tensor local;
  DTensorSpec input;
  DTensorSpec output;
  std::vector<int64_t> dims;
  std::vector<int64_t> sizes;
  /// Mesh dims that cut a reduced dim.
  std::vector<int64_t> joined;
};

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

void set_output(LocalReduction& reduction, c10::IntArrayRef sizes, bool keep) {
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

// `boxes`: a rank's rows must lie together, or the dim is gathered.
LocalReduction reduce_locally(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    bool keepdim,
    bool boxes,
    const char* name) {
  require_values(self, name);
  const auto& from = spec_of(self);
  LocalReduction reduction;
  reduction.dims = reduced_dims(dims, self);
  reduction.input = from.without_partial();
  if (boxes && !has_local_boxes(reduction.input, self.sizes())) {
    auto placements = reduction.input.placements();
    for (auto& placement : placements) {
      if (placement.is_shard() &&
          contains(reduction.dims, placement.tensor_dim())) {
        placement = Replicate();
      }
    }
    reduction.input = from.with(placements);
  }
  const auto* impl = dtensor_impl(self);
  reduction.local = impl->local();
  if (!(reduction.input == from)) {
    check_implicit_redistribution(
        name, self, from, reduction.input, [&] { return describe(self); });
    reduction.local = redistribute_local(
        reduction.local, self.sizes(), from, reduction.input, name);
  }
  set_output(reduction, self.sizes(), keepdim);
  return reduction;
}

at::Tensor wrap(const LocalReduction& reduction, const at::Tensor& local) {
  return make_dtensor(
      local,
      reduction.output,
      reduction.sizes,
      row_major_strides(reduction.sizes));
}

// --- norms ------------------------------------------------------------------

// A part of no elements has no largest one, but leaves the others' alone.
at::Tensor local_norm(
    const LocalReduction& reduction,
    double order,
    bool keepdim,
    std::optional<at::ScalarType> dtype) {
  const auto& local = reduction.local;
  const bool empty = std::ranges::any_of(
      reduction.dims, [&](int64_t d) { return local.size(d) == 0; });
  if (empty && !reduction.joined.empty() && (order < 0 || std::isinf(order))) {
    const auto zeros =
        at::linalg_vector_norm(local, 1, reduction.dims, keepdim, dtype);
    return zeros.fill_(order > 0 ? 0 : std::numeric_limits<double>::infinity());
  }
  return at::linalg_vector_norm(local, order, reduction.dims, keepdim, dtype);
}

// The parts' norms joined: for order p (sum of n^p)^(1/p), for 0 their sum, for
// inf and -inf their max and min.
at::Tensor
join_norms(at::Tensor norm, const LocalReduction& reduction, double order) {
  const bool infinite = std::isinf(order);
  const bool powers = !infinite && order != 0 && order != 1;
  const auto dtype = norm.scalar_type();
  if (!infinite) {
    norm = norm.to(at::toOpMathType(dtype));
  }
  if (powers) {
    norm = norm.pow(order);
  }
  norm = norm.contiguous();
  const auto op = !infinite   ? ReduceOp::kSum
                  : order > 0 ? ReduceOp::kMax
                              : ReduceOp::kMin;
  for (const int64_t m : reduction.joined) {
    reduction.input.mesh().group(m).all_reduce(norm, op, "norm").wait();
  }
  return (powers ? norm.pow(1.0 / order) : norm).to(dtype);
}

at::Tensor vector_norm(
    const at::Tensor& self,
    const at::Scalar& ord,
    at::OptionalIntArrayRef dim,
    bool keepdim,
    std::optional<at::ScalarType> dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const double order = ord.toDouble();
  const auto reduction =
      reduce_locally(self, dim, keepdim, false, "linalg_vector_norm");
  auto norm = local_norm(reduction, order, keepdim, dtype);
  if (!reduction.joined.empty() && norm.numel() > 0) {
    norm = join_norms(std::move(norm), reduction, order);
  }
  return wrap(reduction, norm);
}

at::Tensor norm(const at::Tensor& self, const at::Scalar& p) {
  return vector_norm(self, p, {}, false, {});
}

at::Tensor norm_dtype(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::ScalarType dtype) {
  return vector_norm(self, p.value_or(2), {}, false, dtype);
}

at::Tensor norm_dim(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::IntArrayRef dim,
    bool keepdim) {
  return vector_norm(self, p.value_or(2), dim, keepdim, {});
}

at::Tensor norm_dim_dtype(
    const at::Tensor& self,
    const std::optional<at::Scalar>& p,
    at::IntArrayRef dim,
    bool keepdim,
    at::ScalarType dtype) {
  return vector_norm(self, p.value_or(2), dim, keepdim, dtype);
}

// --- the place of the largest or smallest -----------------------------------

struct Extremum {
  at::Tensor values;
  at::Tensor indices;
};

constexpr int64_t kNoIndex = std::numeric_limits<int64_t>::max();

// What no element is beyond.
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

Extremum along(const at::Tensor& tensor, int64_t dim, bool keepdim, bool max) {
  auto [values, indices] =
      max ? at::max(tensor, dim, keepdim) : at::min(tensor, dim, keepdim);
  return {values, indices};
}

// The better of every rank's pair: of equal values, and of NaNs, the first in
// the whole.
Extremum choose(const Extremum& all, bool max) {
  const auto best = max ? at::amax(all.values, 0) : at::amin(all.values, 0);
  auto chosen = all.values.eq(best);
  if (all.values.is_floating_point()) {
    chosen = chosen.logical_or(all.values.isnan());
  }
  return {best, at::amin(all.indices.masked_fill(~chosen, kNoIndex), 0)};
}

at::Tensor gather(mesh::Communicator& group, const at::Tensor& part) {
  auto sizes = part.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  auto all = at::empty(sizes, part.options());
  group.all_gather(all, part.contiguous(), "extremum").wait();
  return all;
}

Extremum join(Extremum part, const LocalReduction& reduction, bool max) {
  if (part.values.numel() == 0) {
    return part;
  }
  for (const int64_t m : reduction.joined) {
    auto group = reduction.input.mesh().group(m);
    part =
        choose({gather(group, part.values), gather(group, part.indices)}, max);
  }
  return part;
}

// This rank's pair along one dim, with the index in the whole dim.
Extremum local_extremum(
    const LocalReduction& reduction,
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
    const auto r = reduce_locally(self, {}, false, true, "max");
    const auto part = along(r.local, dim, keepdim, max);
    return {wrap(r, part.values), wrap(r, part.indices)};
  }
  const auto reduction =
      reduce_locally(self, at::IntArrayRef{dim}, keepdim, true, "max");
  const auto part = join(
      local_extremum(reduction, self.sizes(), keepdim, max), reduction, max);
  return {wrap(reduction, part.values), wrap(reduction, part.indices)};
}

std::tuple<at::Tensor, at::Tensor>
max_dim(const at::Tensor& self, int64_t dim, bool keepdim) {
  return extremum_dim(self, dim, keepdim, true);
}

std::tuple<at::Tensor, at::Tensor>
min_dim(const at::Tensor& self, int64_t dim, bool keepdim) {
  return extremum_dim(self, dim, keepdim, false);
}

// The index in the whole tensor, laid out flat, of one in this rank's box.
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

// The pair of the whole tensor.
Extremum flat_extremum(
    const LocalReduction& reduction,
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
  const auto reduction = reduce_locally(self, {}, keepdim, true, "argmax");
  const auto part =
      join(flat_extremum(reduction, self.sizes(), max), reduction, max);
  return wrap(reduction, part.indices.view(reduction.sizes));
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

void register_joined_reductions(
    torch::Library& library,
    std::set<std::string>& taken) {
  const auto add = [&](const char* name, auto function) {
    library.impl(name, function);
    taken.insert(std::string("aten::") + name);
  };
  add("linalg_vector_norm", TORCH_FN(vector_norm));
  add("norm.Scalar", TORCH_FN(norm));
  add("norm.ScalarOpt_dtype", TORCH_FN(norm_dtype));
  add("norm.ScalarOpt_dim", TORCH_FN(norm_dim));
  add("norm.ScalarOpt_dim_dtype", TORCH_FN(norm_dim_dtype));
  add("max.dim", TORCH_FN(max_dim));
  add("min.dim", TORCH_FN(min_dim));
  add("argmax", TORCH_FN(argmax));
  add("argmin", TORCH_FN(argmin));
}

} // namespace weft::dtensor
