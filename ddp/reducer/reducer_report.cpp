// Reports of the reducer about past backward passes.
#include <cmath>
#include <optional>

#include <torch/torch.h>

#include "ddp/reducer/reducer.h"

namespace weft::ddp {
namespace {

// Overflows for the same values as grad_norm(). A dot product takes two thirds
// of the time of a norm.
at::Tensor sum_of_squares(const at::Tensor& gradients) {
  const auto dtype = gradients.scalar_type();
  if (gradients.dim() == 1 && (dtype == at::kFloat || dtype == at::kDouble)) {
    return at::dot(gradients, gradients);
  }
  const bool is_low_precision = dtype == at::kHalf || dtype == at::kBFloat16;
  return at::linalg_vector_norm(
             gradients,
             2,
             /*dim=*/std::nullopt,
             /*keepdim=*/false,
             is_low_precision ? std::optional(at::kFloat) : std::nullopt)
      .square();
}

} // namespace

GradientUse Reducer::last_use() const {
  const std::lock_guard lock(mutex_);
  GradientUse use{
      .iteration = backwards_,
      .without_gradient = {},
      .not_in_graph = last_unreachable_,
      .last_gradient = {}};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto last = parameters_[i].last_used;
    if (backwards_ > 0 && last != backwards_) {
      use.without_gradient.push_back(i);
    }
    use.last_gradient.push_back(last > 0 ? std::optional(last) : std::nullopt);
  }
  return use;
}

void Reducer::record_use() {
  last_unreachable_.reset();
  for (size_t i = 0; i < is_unreachable_.size(); ++i) {
    if (!last_unreachable_) {
      last_unreachable_.emplace();
    }
    if (is_unreachable_[i]) {
      last_unreachable_->push_back(i);
    }
  }
  std::vector<size_t> unused;
  int64_t bytes = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].last_used != backwards_) {
      unused.push_back(i);
      bytes += static_cast<int64_t>(
          data_parallel::local_part(parameters_[i].state.tensor).nbytes());
    }
  }
  statistics_.on_unused(unused, bytes);
  statistics_.on_ready_order(ready_);
  statistics_.on_buckets_reduced(static_cast<int64_t>(buckets_.size()));
}

void Reducer::enable_local_norms() {
  const std::lock_guard lock(mutex_);
  keeps_local_norms_ = true;
}

// The norm stays on its device, because it is read only if the global norm is
// not finite.
void Reducer::keep_local_norm(size_t index) {
  if (!keeps_local_norms_) {
    return;
  }
  const auto& bucket = buckets_[index];
  local_norms_.resize(buckets_.size());
  if (bucket.layout().memory == BucketMemory::kFlat) {
    local_norms_[index] = sum_of_squares(bucket.gradients_only());
    return;
  }
  std::vector<at::Tensor> sums;
  for (const auto& view : bucket.views()) {
    sums.push_back(sum_of_squares(view.is_sparse() ? view._values() : view));
  }
  local_norms_[index] = at::stack(sums).sum();
}

std::vector<LocalNorm> Reducer::local_norms() const {
  const std::lock_guard lock(mutex_);
  std::vector<LocalNorm> result;
  for (size_t i = 0; i < local_norms_.size(); ++i) {
    if (!local_norms_[i].defined()) {
      continue;
    }
    auto& norm = result.emplace_back();
    norm.norm = std::sqrt(local_norms_[i].item<double>());
    for (const auto& slot : buckets_[i].slots()) {
      norm.parameters.push_back(names_[slot.parameter]);
    }
  }
  return result;
}

bool Reducer::begin_iteration() {
  const std::lock_guard lock(mutex_);
  return statistics_.on_forward_begin(RuntimeStatistics::Clock::now());
}

void Reducer::set_sample_rate(int64_t every) {
  const std::lock_guard lock(mutex_);
  statistics_.set_sample_rate(every);
}

void Reducer::write_statistics(DDPLoggingData& data) const {
  const std::lock_guard lock(mutex_);
  statistics_.write_to(data);
}

} // namespace weft::ddp
