// Variances and logsumexp over sharded dims. See Note [Cross-shard reductions].

#include <optional>
#include <tuple>

#include <ATen/OpMathType.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/ops/cross_shard_reduction.h"
#include "dtensor/tensor/autograd.h"

namespace weft::dtensor {
namespace {

using MaybeScalar = std::optional<at::Scalar>;

// The count, the mean and the sum of squared deviations of a part.
struct Moments {
  at::Tensor counts;
  at::Tensor means;
  at::Tensor squares;
};

Moments local_moments(const CrossShardReduction& reduction, bool keepdim) {
  const auto local =
      reduction.local.to(at::toOpMathType(reduction.local.scalar_type()));
  double count = 1;
  for (const int64_t d : reduction.dims) {
    count *= static_cast<double>(local.size(d));
  }
  Moments moments;
  if (count == 0) {
    moments.means = at::sum(local, reduction.dims, keepdim);
    moments.squares = moments.means;
  } else {
    std::tie(moments.squares, moments.means) =
        at::var_mean(local, reduction.dims, at::Scalar(0), keepdim);
    moments.squares = moments.squares * count;
  }
  moments.counts = at::full_like(moments.means, count);
  return moments;
}

// Joins the moments of all ranks of one mesh dim.
// Source: T. Chan, G. Golub, R. LeVeque, Updating formulae and a pairwise
// algorithm for computing sample variances, 1979.
Moments join(
    const Moments& part,
    const CrossShardReduction& reduction,
    int64_t mesh_dim) {
  const auto packed = at::stack({part.counts, part.means, part.squares});
  const auto all = gather_parts(reduction, mesh_dim, packed, "var");
  const auto counts = all.select(1, 0);
  const auto means = all.select(1, 1);
  Moments joined;
  joined.counts = counts.sum(0);
  joined.means = (counts * means).sum(0) / joined.counts.clamp_min(1);
  joined.squares = all.select(1, 2).sum(0) +
                   (counts * (means - joined.means).square()).sum(0);
  return joined;
}

struct Statistics {
  at::Tensor variance;
  at::Tensor mean;
};

Statistics statistics(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const MaybeScalar& correction,
    bool keepdim) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto reduction = reduce_parts(
      self,
      dim,
      keepdim,
      self.is_floating_point() ? Parts::kAny : Parts::kReplicated,
      "var");
  const auto wrap = [&](const at::Tensor& local) {
    return wrap_reduction(reduction, local);
  };
  if (reduction.joined.empty()) {
    const auto [variance, mean] =
        at::var_mean(reduction.local, reduction.dims, correction, keepdim);
    return {wrap(variance), wrap(mean)};
  }
  auto moments = local_moments(reduction, keepdim);
  for (const int64_t m : reduction.joined) {
    if (moments.counts.numel() > 0) {
      moments = join(moments, reduction, m);
    }
  }
  const double less = correction.value_or(1).toDouble();
  const auto variance = moments.squares / moments.counts.sub(less).clamp_min(0);
  const auto dtype = self.scalar_type();
  return {wrap(variance.to(dtype)), wrap(moments.means.to(dtype))};
}

at::Tensor variance_of(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const MaybeScalar& correction,
    bool keepdim) {
  return statistics(self, dim, correction, keepdim).variance;
}

at::Tensor deviation(const at::Tensor& variance) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return variance.sqrt();
}

at::Tensor std_of(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const MaybeScalar& correction,
    bool keepdim) {
  return deviation(variance_of(self, dim, correction, keepdim));
}

std::tuple<at::Tensor, at::Tensor> var_mean(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const MaybeScalar& correction,
    bool keepdim) {
  const auto both = statistics(self, dim, correction, keepdim);
  return {both.variance, both.mean};
}

std::tuple<at::Tensor, at::Tensor> std_mean(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const MaybeScalar& correction,
    bool keepdim) {
  const auto both = statistics(self, dim, correction, keepdim);
  return {deviation(both.variance), both.mean};
}

// A part without elements contributes -inf, the logarithm of a sum of no terms.
at::Tensor
logsumexp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto reduction = reduce_parts(
      self,
      dim,
      keepdim,
      self.is_floating_point() ? Parts::kAny : Parts::kReplicated,
      "logsumexp");
  auto part = at::logsumexp(reduction.local, reduction.dims, keepdim);
  for (const int64_t m : reduction.joined) {
    if (part.numel() > 0) {
      part = at::logsumexp(gather_parts(reduction, m, part, "logsumexp"), 0);
    }
  }
  return wrap_reduction(reduction, part);
}

} // namespace

void register_statistics(
    torch::Library& library,
    std::set<std::string>& taken) {
  const auto add = [&](const char* name, auto function) {
    library.impl(name, function);
    taken.insert(std::string("aten::") + name);
  };
  add("var.correction", TORCH_FN(variance_of));
  add("std.correction", TORCH_FN(std_of));
  add("var_mean.correction", TORCH_FN(var_mean));
  add("std_mean.correction", TORCH_FN(std_mean));
  add("logsumexp", TORCH_FN(logsumexp));
}

} // namespace weft::dtensor
