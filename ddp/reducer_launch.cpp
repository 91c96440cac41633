// How buckets are reduced, and what replicas tell each other meanwhile.
#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/torch.h>

#include "ddp/reducer.h"
#include "ddp/sparse_sum.h"
#include "dtensor/dtensor_impl.h"
#include "mesh/error.h"

namespace weft::ddp {

double Reducer::divisor(const GradientBucket& bucket) const {
  const bool by_hook = hook_ && hook_->divides() &&
                       bucket.layout().memory == BucketMemory::kFlat;
  return by_hook ? 1.0 : config_.groups[bucket.layout().group].divisor;
}

void Reducer::launch_ready_buckets() {
  size_t end = pending_begin_;
  if (!buckets_.empty() && buckets_.back().layout().has_flag) {
    end = std::min(end, buckets_.size() - 1);
  }
  const auto is_waited_for = [&](const GradientBucket& bucket) {
    const auto& trigger = bucket.layout().trigger;
    return trigger && !parameters_[*trigger].is_ready;
  };
  while (launched_ < end && waiting_for_[launched_] == 0 &&
         !is_waited_for(buckets_[launched_])) {
    // Whether anybody uses it is known at the end.
    if (config_.options.skip_all_reduce_unused_params &&
        !is_used_here(launched_)) {
      return;
    }
    launch(launched_);
  }
}

bool Reducer::is_used_here(size_t bucket) const {
  for (const auto& slot : buckets_[bucket].slots()) {
    if (parameters_[slot.parameter].is_used) {
      return true;
    }
  }
  return false;
}

bool Reducer::is_skipped(size_t bucket) const {
  if (!config_.options.skip_all_reduce_unused_params) {
    return false;
  }
  for (const auto& slot : buckets_[bucket].slots()) {
    if (parameters_[slot.parameter].is_used_anywhere) {
      return false;
    }
  }
  return true;
}

void Reducer::launch(size_t index) {
  auto& bucket = buckets_[index];
  if (!bucket.layout().pending) {
    bucket.fill(divisor(bucket));
  }
  if (config_.options.check_for_nan_in_grad) {
    check_finite(bucket);
  }
  if (bucket.layout().has_flag && is_any_problem()) {
    bucket.raise_flag();
  }
  if (launched_ == 0) {
    statistics_.on_comm_begin(RuntimeStatistics::Clock::now());
  }
  futures_[index] = start(index);
  launched_ = index + 1;
}

BucketFuture Reducer::start(size_t index) {
  const auto& bucket = buckets_[index];
  auto& group = config_.groups[bucket.layout().group].group;
  const auto name =
      mesh::detail::concat("ddp bucket ", index, "/", buckets_.size());
  if (bucket.layout().memory == BucketMemory::kSparse) {
    return sum_sparse(bucket.slots().front().view, group, name);
  }
  if (bucket.layout().memory == BucketMemory::kInPlace) {
    return {
        group.all_reduce_coalesced(bucket.views(), mesh::ReduceOp::kSum, name),
        at::Tensor()};
  }
  if (hook_) {
    return hook_->run(as_seen_by_hook(index));
  }
  return {
      group.all_reduce(bucket.flat(), mesh::ReduceOp::kSum, name),
      bucket.flat()};
}

GradBucket Reducer::as_seen_by_hook(size_t index) const {
  const auto& bucket = buckets_[index];
  GradBucket seen{
      .index = index,
      .is_last = index + 1 == buckets_.size(),
      .buffer = bucket.gradients_only(),
      .gradients = bucket.views(),
      .parameters = {},
      .names = {},
      .group = config_.groups[bucket.layout().group].group};
  for (const auto& slot : bucket.slots()) {
    const auto& state = parameters_[slot.parameter].state;
    seen.parameters.push_back(local_part(state.tensor));
    seen.names.push_back(state.name);
  }
  return seen;
}

void Reducer::check_finite(const GradientBucket& bucket) {
  const auto is_finite = [](const at::Tensor& values) {
    const auto dense = values.is_sparse() ? values._values() : values;
    return dense.numel() == 0 || !dense.is_floating_point() ||
           std::isfinite(dense.sum(at::kFloat).item<double>()) ||
           dense.isfinite().all().item<bool>();
  };
  if (bucket.layout().memory == BucketMemory::kFlat &&
      is_finite(bucket.gradients_only())) {
    return;
  }
  for (const auto& slot : bucket.slots()) {
    if (!is_finite(slot.view)) {
      parameters_[slot.parameter].problem = GradientProblem::kNotFinite;
    }
  }
}

void Reducer::reduce_pending_sums(size_t index) {
  auto& bucket = buckets_[index];
  bucket.fill(divisor(bucket));
  const auto& spec = *bucket.layout().pending;
  const auto name = mesh::detail::concat(
      "ddp bucket ", index, "/", buckets_.size(), " pending sums");
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (!spec.placement(i).is_partial()) {
      continue;
    }
    auto& group = spec.mesh().group(i);
    if (bucket.layout().memory == BucketMemory::kFlat) {
      group.all_reduce(bucket.flat(), mesh::ReduceOp::kSum, name).wait();
    } else {
      group.all_reduce_coalesced(bucket.views(), mesh::ReduceOp::kSum, name)
          .wait();
    }
  }
}

void Reducer::launch_remaining() {
  for (auto& parameter : parameters_) {
    if (!parameter.is_ready) {
      put_unused(parameter);
    }
  }
  const bool is_map_needed_first =
      config_.options.skip_all_reduce_unused_params;
  if (is_map_needed_first) {
    send_status();
    receive_status();
  }
  while (launched_ < buckets_.size()) {
    if (is_skipped(launched_)) {
      ++launched_;
      continue;
    }
    if (launched_ >= pending_begin_) {
      reduce_pending_sums(launched_);
    }
    launch(launched_);
  }
  if (!is_map_needed_first && !hook_ &&
      !config_.options.check_for_nan_in_grad) {
    send_status();
  }
}

void Reducer::wait_for_buckets() {
  for (size_t i = 0; i < futures_.size(); ++i) {
    if (futures_[i]) {
      auto future = std::exchange(futures_[i], std::nullopt);
      take_result(i, future->wait());
    }
  }
  // What a hook returned is known only now, and so is what was not finite.
  if (hook_ || config_.options.check_for_nan_in_grad) {
    send_status();
  }
}

void Reducer::take_result(size_t index, const at::Tensor& result) {
  auto& bucket = buckets_[index];
  if (bucket.layout().memory == BucketMemory::kSparse) {
    bucket.set_sparse(result);
    return;
  }
  if (!hook_ || bucket.layout().memory == BucketMemory::kInPlace) {
    return;
  }
  auto buffer = bucket.gradients_only();
  if (!result.defined() || result.sizes() != buffer.sizes() ||
      result.scalar_type() != buffer.scalar_type() ||
      result.device() != buffer.device()) {
    for (const auto& slot : bucket.slots()) {
      parameters_[slot.parameter].problem = GradientProblem::kWrongHookResult;
    }
  } else if (!result.is_same(buffer)) {
    buffer.copy_(result);
  }
}

bool Reducer::has_status_message() const {
  if (dp_.size() == 1) {
    return false;
  }
  return hook_ || config_.options.check_for_nan_in_grad ||
         config_.options.find_unused_parameters || buckets_.empty() ||
         !buckets_.back().layout().has_flag;
}

void Reducer::send_status() {
  if (!has_status_message()) {
    return;
  }
  std::vector<int64_t> counts;
  for (const auto& parameter : parameters_) {
    counts.push_back(parameter.is_used ? 1 : 0);
  }
  counts.push_back(is_any_problem() ? 1 : 0);
  status_ = at::tensor(counts, at::kLong).to(device_);
  status_work_ =
      dp_.group(int64_t{0})
          .all_reduce(status_, mesh::ReduceOp::kSum, "ddp used parameters");
}

void Reducer::receive_status() {
  const bool is_dynamic =
      config_.options.find_unused_parameters && !config_.options.static_graph;
  if (status_work_) {
    std::exchange(status_work_, std::nullopt)->wait();
    if (status_.is_meta()) {
      return;
    }
    const auto counts = status_.cpu();
    const auto values = counts.accessor<int64_t, 1>();
    for (size_t i = 0; is_dynamic && i < parameters_.size(); ++i) {
      parameters_[i].is_used_anywhere = values[static_cast<int64_t>(i)] > 0;
    }
  } else if (is_dynamic && !status_.defined()) {
    for (auto& parameter : parameters_) {
      parameter.is_used_anywhere = parameter.is_used;
    }
  }
}

bool Reducer::is_any_problem() const {
  for (const auto& parameter : parameters_) {
    if (parameter.problem != GradientProblem::kNone) {
      return true;
    }
  }
  return false;
}

bool Reducer::is_problem_elsewhere() {
  bool is_any = is_any_problem();
  if (status_.defined()) {
    is_any = is_any || (!status_.is_meta() &&
                        status_[status_.numel() - 1].item<int64_t>() > 0);
  } else if (!buckets_.empty()) {
    is_any = is_any || buckets_.back().is_flag_raised();
  }
  return config_.options.check_for_nan_in_grad ? is_on_any_part(is_any)
                                               : is_any;
}

// A part of a parameter can hold NaN where others do not.
bool Reducer::is_on_any_part(bool is_here) {
  const auto flag = at::full({1}, is_here ? 1 : 0, at::kLong).to(device_);
  for (const auto& mesh : tensor_meshes_) {
    for (int64_t i = 0; i < mesh.ndim(); ++i) {
      mesh.group(i)
          .all_reduce(flag, mesh::ReduceOp::kMax, "ddp problems")
          .wait();
    }
  }
  return is_here || (!flag.is_meta() && flag.item<int64_t>() != 0);
}

} // namespace weft::ddp
