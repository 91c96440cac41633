#include "data_parallel/comm_hooks/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Logging.h>
#include <torch/torch.h>

#include "data_parallel/comm_hooks/bucket_views.h"
#include "data_parallel/comm_hooks/orthogonalize.h"

// Note [Factors that vanish]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// With warm start, a step begins with the q of the step before it. After a step
// in which a parameter had no gradient, q would be zero and stay zero. After a
// gradient that is not finite, q would be NaN. So q is made finite before it is
// used, and a fixed direction is added to it that is lost in rounding unless q
// is zero. Errors that are not finite are dropped as well: the step itself
// shows its NaN, and the steps after it are valid.

namespace weft::data_parallel {
namespace {

using Matrices = PowerSGDPass::Matrices;

at::ScalarType computed_in(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor as_matrix(const at::Tensor& gradient) {
  return gradient.reshape({gradient.size(0), -1});
}

class FlatSplitter {
 public:
  explicit FlatSplitter(at::Tensor flat) : flat_(std::move(flat)) {}

  at::Tensor next(at::IntArrayRef sizes) {
    const int64_t numel = c10::multiply_integers(sizes);
    offset_ += numel;
    return flat_.narrow(0, offset_ - numel, numel).view(sizes);
  }

 private:
  at::Tensor flat_;
  int64_t offset_ = 0;
};

/// See Note [Factors that vanish].
void reinit_vanished_columns(const at::Tensor& qs) {
  constexpr double kLostInRounding = 1e-15;
  at::Tensor(qs).nan_to_num_(0, 0, 0).add_(
      at::arange(qs.numel(), qs.options()).cos_(), kLostInRounding);
}

/// Fills every q with normally distributed numbers. Shapes: p [b, n, r] and q
/// [b, m, r] for b gradients of n rows and m columns.
void fill_with_random_numbers(std::vector<Matrices>& matrices, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& each : matrices) {
    const auto drawn = at::randn(
        each.q.sizes(),
        generator,
        at::TensorOptions(at::kCPU).dtype(each.q.scalar_type()));
    at::Tensor(each.q).copy_(drawn);
  }
}

void check_options(const PowerSGDOptions& options, const char* hook) {
  const auto where = [] { return mesh::ErrorContext{"comm hook"}; };
  const int64_t least =
      options.use_error_feedback || options.warm_start ? 2 : 0;
  WEFT_CHECK(
      options.matrix_approximation_rank >= 1,
      hook,
      where(),
      "matrix_approximation_rank: got ",
      options.matrix_approximation_rank,
      ", expected at least 1. It is the number of columns of the factors.");
  WEFT_CHECK(
      options.start_powerSGD_iter >= least,
      hook,
      where(),
      "start_powerSGD_iter: got ",
      options.start_powerSGD_iter,
      ", expected at least ",
      least,
      ". With use_error_feedback or warm_start, compression can begin after "
      "two steps at the earliest, because buckets change after the first.");
  WEFT_CHECK(
      options.min_compression_rate > 0 &&
          std::isfinite(options.min_compression_rate),
      hook,
      where(),
      "expected a positive min_compression_rate, got ",
      options.min_compression_rate,
      ". 2 is a good value.");
  WEFT_CHECK(
      options.orthogonalization_epsilon >= 0 &&
          std::isfinite(options.orthogonalization_epsilon),
      hook,
      where(),
      "expected a non-negative orthogonalization_epsilon, got ",
      options.orthogonalization_epsilon,
      ". 0 or 1e-8 are good values.");
  WEFT_CHECK(
      options.compression_stats_logging_frequency >= 1,
      hook,
      where(),
      "compression_stats_logging_frequency: got ",
      options.compression_stats_logging_frequency,
      ", expected at least 1. It is a number of steps.");
}

} // namespace

PowerSGD::PowerSGD(const PowerSGDOptions& options, bool whole_bucket)
    : options_(options),
      whole_bucket_(whole_bucket),
      memory_(options.random_seed) {
  check_options(options, name());
}

const char* PowerSGD::name() const {
  return whole_bucket_ ? "batched_powerSGD_hook" : "powerSGD_hook";
}

BucketFuture PowerSGD::run(const GradBucket& bucket) {
  check_can_compress(bucket, name());
  const bool compresses = memory_.iter >= options_.start_powerSGD_iter;
  memory_.iter += bucket.is_last;
  if (!compresses) {
    return start_average(bucket.buffer, bucket.group, label_of(bucket));
  }
  auto pass = std::make_shared<Pass>(bucket);
  gather_gradients(*pass);
  if (whole_bucket_) {
    make_square(*pass);
  } else {
    sort_gradients(*pass);
  }
  count(*pass);
  start_qs(*pass);
  compute_ps(*pass);
  auto group = bucket.group;
  auto work = group.all_reduce(
      pass->message, mesh::ReduceOp::kSum, label_of(bucket) + " plain and p");
  return BucketFuture(std::move(work), pass->message)
      .then([self = shared_from_this(), pass](const at::Tensor&) {
        self->take_message(*pass);
        self->reduce_qs(*pass);
        self->decompress(*pass);
        self->remember(*pass);
        return pass->bucket.buffer;
      });
}

void PowerSGD::gather_gradients(Pass& pass) const {
  const auto& buffer = pass.bucket.buffer;
  auto numel = buffer.numel();
  if (whole_bucket_) {
    auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(numel)));
    side += side * side < numel;
    numel = side * side;
  }
  const auto dtype = computed_in(buffer.scalar_type());
  if (numel == buffer.numel() && dtype == buffer.scalar_type()) {
    pass.work = buffer;
  } else {
    pass.work = at::zeros({numel}, buffer.options().dtype(dtype));
    pass.work.narrow(0, 0, buffer.numel()).copy_(buffer);
  }
  if (options_.use_error_feedback) {
    const auto error = memory_.error(pass.bucket, numel);
    if (error.defined()) {
      pass.work.add_(error.to(pass.work.device(), dtype));
    }
    pass.before = pass.work.clone();
  }
}

int64_t PowerSGD::rank_of(int64_t rows, int64_t columns) const {
  return std::min({rows, columns, options_.matrix_approximation_rank});
}

void PowerSGD::sort_gradients(Pass& pass) const {
  std::vector<std::vector<at::Tensor>> by_shape;
  const auto gradients = gradients_in(pass.work, pass.bucket);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& gradient = gradients[i];
    if (gradient.numel() == 0) {
      continue;
    }
    const int64_t n = gradient.dim() == 0 ? 1 : gradient.size(0);
    const int64_t m = gradient.numel() / n;
    const auto compressed = static_cast<double>((n + m) * rank_of(n, m));
    if (gradient.dim() < 2 || compressed * options_.min_compression_rate >=
                                  static_cast<double>(n * m)) {
      pass.plain_indices.push_back(i);
      pass.plain.push_back(gradient);
      continue;
    }
    const auto same =
        std::find_if(by_shape.begin(), by_shape.end(), [&](const auto& others) {
          return others.front().size(0) == n &&
                 others.front().numel() == gradient.numel();
        });
    if (same != by_shape.end()) {
      same->push_back(gradient);
    } else {
      by_shape.push_back({gradient});
    }
  }
  add_matrices(pass, by_shape);
}

// Appends the matrices in the order in which their shapes first appear, whether
// they are batched or not. Random numbers are drawn in this order.
void PowerSGD::add_matrices(
    Pass& pass,
    const std::vector<std::vector<at::Tensor>>& by_shape) const {
  for (const auto& gradients : by_shape) {
    if (options_.batch_tensors_with_same_shape && gradients.size() > 1) {
      std::vector<at::Tensor> all;
      for (const at::Tensor& gradient : gradients) {
        all.push_back(as_matrix(gradient));
      }
      pass.matrices.push_back({at::stack(all), gradients, {}, {}});
      continue;
    }
    for (const at::Tensor& gradient : gradients) {
      pass.matrices.push_back(
          {as_matrix(gradient).unsqueeze(0), {gradient}, {}, {}});
    }
  }
}

void PowerSGD::make_square(Pass& pass) const {
  const auto numel = pass.work.numel();
  if (numel > 0) {
    const auto side = std::lround(std::sqrt(static_cast<double>(numel)));
    const auto square = pass.work.view({side, side});
    pass.matrices.push_back({square.unsqueeze(0), {square}, {}, {}});
  }
}

void PowerSGD::count(const Pass& pass) {
  int64_t after = 0;
  for (const at::Tensor& gradient : pass.plain) {
    after += gradient.numel();
  }
  for (const auto& each : pass.matrices) {
    const auto n = each.stacked.size(1);
    const auto m = each.stacked.size(2);
    after += each.stacked.size(0) * (n + m) * rank_of(n, m);
  }
  const auto& bucket = pass.bucket;
  const auto size = static_cast<int64_t>(bucket.buffer.element_size());
  auto& stats = memory_.stats;
  stats.numel_before_compression += bucket.buffer.numel();
  stats.numel_after_compression += after;
  stats.bytes_before_compression += bucket.buffer.numel() * size;
  stats.bytes_after_compression += after * size;
  if (bucket.is_last && memory_.iter > memory_.next_stats_report) {
    memory_.next_stats_report =
        memory_.iter - 1 + options_.compression_stats_logging_frequency;
    if (bucket.group.rank() == 0) {
      LOG(INFO) << "[weft] " << name() << ", step " << memory_.iter - 1 << ": "
                << stats.bytes_before_compression << " bytes became "
                << stats.bytes_after_compression << " on each rank";
    }
  }
}

void PowerSGD::start_qs(Pass& pass) {
  int64_t p_numel = 0;
  int64_t q_numel = 0;
  for (const auto& each : pass.matrices) {
    const auto b = each.stacked.size(0);
    const auto n = each.stacked.size(1);
    const auto m = each.stacked.size(2);
    p_numel += b * n * rank_of(n, m);
    q_numel += b * m * rank_of(n, m);
  }
  const auto options = pass.work.options();
  at::Tensor last;
  if (options_.warm_start) {
    last = memory_.q(pass.bucket, q_numel);
  }
  pass.ps = at::empty({p_numel}, options);
  pass.qs = last.defined() ? last.to(
                                 options,
                                 /*non_blocking=*/false,
                                 /*copy=*/true)
                           : at::empty({q_numel}, options);
  FlatSplitter ps(pass.ps);
  FlatSplitter qs(pass.qs);
  for (auto& each : pass.matrices) {
    const auto b = each.stacked.size(0);
    const auto n = each.stacked.size(1);
    const auto m = each.stacked.size(2);
    each.p = ps.next({b, n, rank_of(n, m)});
    each.q = qs.next({b, m, rank_of(n, m)});
  }
  if (last.defined()) {
    reinit_vanished_columns(pass.qs);
  } else {
    fill_with_random_numbers(pass.matrices, memory_.next_seed());
  }
}

void PowerSGD::compute_ps(Pass& pass) const {
  for (auto& each : pass.matrices) {
    orthogonalize(each.q, options_.orthogonalization_epsilon);
    at::bmm_out(each.p, each.stacked, each.q);
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& gradient : pass.plain) {
    parts.push_back(gradient.reshape({-1}));
  }
  parts.push_back(pass.ps);
  pass.message = at::cat(parts).to(pass.bucket.buffer.scalar_type());
}

void PowerSGD::take_message(Pass& pass) const {
  const auto p_numel = pass.ps.numel();
  const auto plain_numel = pass.message.numel() - p_numel;
  const auto average =
      pass.message.narrow(0, 0, plain_numel).div_(pass.bucket.group.size());
  FlatSplitter cutter(average);
  for (at::Tensor& gradient : pass.plain) {
    gradient.copy_(cutter.next(gradient.sizes()));
  }
  // The sum of P is not divided, because orthogonalize() normalizes its
  // columns.
  pass.ps.copy_(pass.message.narrow(0, plain_numel, p_numel));
  for (auto& each : pass.matrices) {
    orthogonalize(each.p, options_.orthogonalization_epsilon);
  }
}

void PowerSGD::reduce_qs(Pass& pass) const {
  for (auto& each : pass.matrices) {
    at::bmm_out(each.q, each.stacked.transpose(1, 2), each.p);
  }
  auto group = pass.bucket.group;
  pass.qs.div_(group.size());
  const auto message = pass.qs.to(pass.bucket.buffer.scalar_type());
  group.all_reduce(message, mesh::ReduceOp::kSum, label_of(pass.bucket) + " q")
      .wait();
  pass.qs.copy_(message);
}

void PowerSGD::decompress(Pass& pass) const {
  for (auto& each : pass.matrices) {
    at::bmm_out(each.stacked, each.p, each.q.transpose(1, 2));
    if (!each.stacked.is_alias_of(pass.work)) {
      for (size_t i = 0; i < each.gradients.size(); ++i) {
        auto& gradient = each.gradients[i];
        gradient.copy_(
            each.stacked[static_cast<int64_t>(i)].view(gradient.sizes()));
      }
    }
  }
  auto& buffer = pass.bucket.buffer;
  if (!buffer.is_alias_of(pass.work)) {
    buffer.copy_(pass.work.narrow(0, 0, buffer.numel()));
  }
}

void PowerSGD::remember(Pass& pass) {
  const auto index = pass.bucket.index;
  if (options_.use_error_feedback) {
    const auto error = pass.before.sub_(pass.work);
    const auto errors = gradients_in(error, pass.bucket);
    for (const size_t i : pass.plain_indices) {
      // Uncompressed gradients are averaged exactly, so that these errors sum
      // to zero over all ranks.
      at::Tensor(errors[i]).zero_();
    }
    memory_.keep_error(index, at::Tensor(error).nan_to_num_(0, 0, 0));
  }
  if (options_.warm_start) {
    memory_.keep_q(index, pass.qs);
  }
}

} // namespace weft::data_parallel
