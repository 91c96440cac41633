// Norms over sharded dims. See Note [Cross-shard reductions].

#include <cmath>
#include <limits>
#include <optional>

#include <ATen/OpMathType.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/ops/cross_shard_reduction.h"
#include "dtensor/tensor/autograd.h"

namespace weft::dtensor {
namespace {

// Returns the norm of this rank's part. libtorch has no infinite or negative
// norm of an empty tensor, so an empty part gets the neutral value of the
// reduction.
at::Tensor local_norm(
    const CrossShardReduction& reduction,
    double order,
    bool keepdim,
    std::optional<at::ScalarType> dtype) {
  const auto& local = reduction.local;
  if (!reduction.joined.empty() && reduction.is_empty() &&
      (order < 0 || std::isinf(order))) {
    const auto zeros =
        at::linalg_vector_norm(local, 1, reduction.dims, keepdim, dtype);
    return zeros.fill_(order > 0 ? 0 : std::numeric_limits<double>::infinity());
  }
  return at::linalg_vector_norm(local, order, reduction.dims, keepdim, dtype);
}

at::Tensor join_norms(
    at::Tensor norm,
    const CrossShardReduction& reduction,
    double order) {
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
      reduce_parts(self, dim, keepdim, Parts::kAny, "linalg_vector_norm");
  auto norm = local_norm(reduction, order, keepdim, dtype);
  if (!reduction.joined.empty() && norm.numel() > 0) {
    norm = join_norms(std::move(norm), reduction, order);
  }
  return wrap_reduction(reduction, norm);
}

at::Tensor norm_of(const at::Tensor& self, const at::Scalar& p) {
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

} // namespace

void register_norms(torch::Library& library, std::set<std::string>& taken) {
  const auto add = [&](const char* name, auto function) {
    library.impl(name, function);
    taken.insert(std::string("aten::") + name);
  };
  add("linalg_vector_norm", TORCH_FN(vector_norm));
  add("norm.Scalar", TORCH_FN(norm_of));
  add("norm.ScalarOpt_dtype", TORCH_FN(norm_dtype));
  add("norm.ScalarOpt_dim", TORCH_FN(norm_dim));
  add("norm.ScalarOpt_dim_dtype", TORCH_FN(norm_dim_dtype));
}

} // namespace weft::dtensor
