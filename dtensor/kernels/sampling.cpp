// Random draws that depend on the values of tensors. The numbers of an element
// depend on its index in the full tensor, so each rank draws those of its own
// elements.

#include <cmath>

#include <torch/torch.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/kernels/random_ops.h"
#include "dtensor/random/random_sampling.h"
#include "dtensor/redistribute/redistribute.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

constexpr Draw kUniform{Draw::Kind::kUniform, 0, 1};
constexpr Draw kNormal{Draw::Kind::kNormal, 0, 1};

// Returns the spec of a result with sizes `to`: that of the first of `a` and
// `b` with these sizes, without Partial, otherwise Replicate.
DTensorSpec
spec_of_result(const at::Tensor& a, const at::Tensor& b, at::IntArrayRef to) {
  const auto common = common_spec({&a, &b});
  for (const auto* tensor : {&a, &b}) {
    if (is_dtensor(*tensor) && tensor->sizes() == to &&
        spec_of(*tensor).mesh_ndim() != 0) {
      return spec_of(*tensor).without_partial();
    }
  }
  return common.with(Placements(common.mesh_ndim(), Replicate()));
}

at::Tensor local_values(
    const at::Tensor& tensor,
    const DTensorSpec& spec,
    const char* op) {
  const auto placed = place(tensor, spec);
  return redistribute_local(
             dtensor_impl(placed)->local(),
             placed.sizes(),
             spec_of(placed),
             spec,
             op)
      .to(at::TensorOptions(at::kCPU).dtype(at::kDouble))
      .contiguous();
}

at::Tensor wrap(
    const at::Tensor& local,
    const at::TensorOptions& options,
    const DTensorSpec& spec,
    c10::IntArrayRef sizes) {
  return make_dtensor(local.to(options), spec, sizes, row_major_strides(sizes));
}

template <class Sample>
at::Tensor
draw_each(const at::Tensor& parameter, const char* op, const Sample& sample) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto spec = spec_of(parameter).without_partial();
  const auto part = next_random_part(spec, parameter.sizes());
  return wrap(
      sample(part.indices(), part.key, local_values(parameter, spec, op)),
      parameter.options(),
      spec,
      parameter.sizes());
}

// Throws: c10::ValueError if `tensor` is not a DTensor on a mesh.
void require_placed(const at::Tensor& tensor, const char* op) {
  TORCH_CHECK_VALUE(
      is_dtensor(tensor) && spec_of(tensor).mesh_ndim() != 0,
      "[",
      op,
      "] draws random numbers that would differ between ranks: ",
      describe(tensor),
      " has no placement. Call set_placements() or distribute_tensor() first.");
}

at::Tensor choose_with_replacement(
    const at::Tensor& weights,
    const at::Tensor& numbers) {
  const auto sums = weights.cumsum(1);
  auto choice = at::searchsorted(
      sums,
      numbers * sums.narrow(1, sums.size(1) - 1, 1),
      /*out_int32=*/false,
      /*right=*/true);
  // Rounding may move a number past the last category with a positive weight.
  const auto last = weights.gt(0)
                        .to(at::kLong)
                        .mul(at::arange(weights.size(1)))
                        .amax(1, /*keepdim=*/true);
  return at::minimum(choice, last);
}

void check_samples(
    const at::Tensor& weights,
    int64_t samples,
    bool replacement) {
  TORCH_CHECK_VALUE(
      samples > 0, "[multinomial] num_samples > 0: ", samples, ".");
  TORCH_CHECK_VALUE(
      replacement || samples <= weights.size(-1),
      "[multinomial] num_samples <= number of categories: ",
      samples,
      " vs ",
      weights.size(-1),
      ". Draw with replacement.");
}

// The ranks combine their results, so that all of them throw. Otherwise ranks
// with valid rows would wait for the others.
void check_weights(const at::Tensor& rows, const DTensorSpec& spec) {
  auto good = rows.isfinite()
                  .all()
                  .logical_and(rows.ge(0).all())
                  .logical_and(rows.sum(1).gt(0).all())
                  .to(at::kLong);
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_shard()) {
      spec.mesh()
          .group(i)
          .all_reduce(good, ReduceOp::kMin, "multinomial")
          .wait();
    }
  }
  TORCH_CHECK_VALUE(
      good.item<int64_t>() == 1,
      "[multinomial] weights must be finite, not negative, and not all 0 in a "
      "row.");
}

} // namespace

at::Tensor bernoulli(
    const at::Tensor& p,
    std::optional<at::Generator> generator) {
  return bernoulli_like(p, p, std::move(generator));
}

at::Tensor bernoulli_like(
    const at::Tensor& self,
    const at::Tensor& p,
    std::optional<at::Generator> generator) {
  check_no_generator("bernoulli", generator);
  require_placed(self, "bernoulli");
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto numbers = draw_dtensor(
      spec_of(self),
      self.sizes(),
      dense_strides(self.sizes(), self.strides()),
      self.options().dtype(at::kFloat),
      kUniform);
  const auto probability = p.dim() == 0 ? p : place(p, spec_of(self));
  return numbers.lt(probability).to(self.scalar_type());
}

at::Tensor& bernoulli_inplace(
    at::Tensor& self,
    const at::Tensor& p,
    std::optional<at::Generator> generator) {
  const at::AutoDispatchBelowADInplaceOrView below;
  write_value(self, bernoulli_like(self, p, std::move(generator)));
  return self;
}

at::Tensor normal_of_both(
    const at::Tensor& mean,
    const at::Tensor& std,
    std::optional<at::Generator> generator) {
  check_no_generator("normal", generator);
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto sizes = at::infer_size(mean.sizes(), std.sizes());
  const auto spec = spec_of_result(mean, std, sizes);
  require_placed(is_dtensor(mean) ? mean : std, "normal");
  const auto z = draw_dtensor(
      spec, sizes, row_major_strides(sizes), mean.options(), kNormal);
  return z * place(std, spec) + place(mean, spec);
}

at::Tensor normal_of_mean(
    const at::Tensor& mean,
    double std,
    std::optional<at::Generator> generator) {
  check_no_generator("normal", generator);
  require_placed(mean, "normal");
  const at::AutoDispatchBelowADInplaceOrView below;
  TORCH_CHECK_VALUE(std >= 0, "[normal] std >= 0: ", std, ".");
  const auto z = draw_dtensor(
      spec_of(mean),
      mean.sizes(),
      dense_strides(mean.sizes(), mean.strides()),
      mean.options(),
      {Draw::Kind::kNormal, 0, std});
  return z + mean;
}

at::Tensor normal_of_std(
    double mean,
    const at::Tensor& std,
    std::optional<at::Generator> generator) {
  check_no_generator("normal", generator);
  require_placed(std, "normal");
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto z = draw_dtensor(
      spec_of(std),
      std.sizes(),
      dense_strides(std.sizes(), std.strides()),
      std.options(),
      kNormal);
  return z * std + mean;
}

at::Tensor poisson(
    const at::Tensor& rate,
    std::optional<at::Generator> generator) {
  check_no_generator("poisson", generator);
  require_placed(rate, "poisson");
  return draw_each(rate, "poisson", sample_poisson);
}

at::Tensor binomial(
    const at::Tensor& count,
    const at::Tensor& probability,
    std::optional<at::Generator> generator) {
  check_no_generator("binomial", generator);
  require_placed(is_dtensor(count) ? count : probability, "binomial");
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto sizes = at::infer_size(count.sizes(), probability.sizes());
  const auto spec = spec_of_result(count, probability, sizes);
  const auto n = place(count, spec).expand(sizes);
  const auto p = place(probability, spec).expand(sizes);
  const auto part = next_random_part(spec, sizes);
  const auto counts = local_values(n, spec, "binomial");
  const auto probabilities = local_values(p, spec, "binomial");
  const auto result =
      sample_binomial(part.indices(), part.key, counts, probabilities);
  return wrap(result, count.options(), spec, sizes);
}

at::Tensor standard_gamma(
    const at::Tensor& alpha,
    std::optional<at::Generator> generator) {
  check_no_generator("_standard_gamma", generator);
  require_placed(alpha, "_standard_gamma");
  return draw_each(alpha, "_standard_gamma", sample_gamma);
}

at::Tensor sample_dirichlet(
    const at::Tensor& alpha,
    std::optional<at::Generator> generator) {
  check_no_generator("_sample_dirichlet", generator);
  require_placed(alpha, "_sample_dirichlet");
  const at::AutoDispatchBelowADInplaceOrView below;
  auto spec = spec_of(alpha).without_partial();
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_shard(alpha.dim() - 1)) {
      spec = spec.with(i, Replicate());
    }
  }
  const auto part = next_random_part(spec, alpha.sizes());
  const auto gamma = sample_gamma(
      part.indices(), part.key, local_values(alpha, spec, "_sample_dirichlet"));
  return wrap(
      gamma / gamma.sum(-1, true), alpha.options(), spec, alpha.sizes());
}

at::Tensor multinomial(
    const at::Tensor& weights,
    c10::SymInt num_samples,
    bool replacement,
    std::optional<at::Generator> generator) {
  check_no_generator("multinomial", generator);
  require_placed(weights, "multinomial");
  const at::AutoDispatchBelowADInplaceOrView below;
  const int64_t samples = num_samples.expect_int();
  check_samples(weights, samples, replacement);
  auto spec = spec_of(weights).without_partial();
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_shard(weights.dim() - 1)) {
      spec = spec.with(i, Replicate());
    }
  }
  auto sizes = weights.sizes().vec();
  sizes.back() = samples;
  const auto local = local_values(weights, spec, "multinomial");
  const auto rows = local.dim() == 1 ? local.unsqueeze(0) : local;
  check_weights(rows, spec);
  at::Tensor choice;
  if (replacement) {
    const auto part = next_random_part(spec, sizes);
    const auto numbers = sample_uniform(part.indices(), part.key);
    choice =
        choose_with_replacement(rows, numbers.view({rows.size(0), samples}));
  } else {
    // Selects the categories whose exponential variables with these rates are
    // the smallest.
    const auto part = next_random_part(spec, weights.sizes());
    const auto times =
        sample_exponential(part.indices(), part.key, 1).view(rows.sizes());
    choice = std::get<1>((rows / times).topk(samples, 1));
  }
  choice = choice.view(
      local.dim() == 1 ? std::vector<int64_t>{samples}
                       : std::vector<int64_t>{rows.size(0), samples});
  return wrap(choice, weights.options().dtype(at::kLong), spec, sizes);
}

} // namespace weft::dtensor::kernels
