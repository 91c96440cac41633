// The reduction of buckets, and the status that replicas exchange.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <torch/torch.h>

#include "ddp/reducer/reducer.h"
#include "ddp/reducer/sparse_sum.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

namespace weft::ddp {

double Reducer::divisor(const GradientBucket& bucket) const {
  const bool by_hook = hook_ && hook_->divides() &&
                       bucket.layout().memory == BucketMemory::kFlat;
  const size_t index = bucket.layout().group;
  const double initial = config_.groups[index].divisor;
  const double divisor = join_ ? join_->divisor(index, initial) : initial;
  return by_hook ? divisor / initial : divisor;
}

// See Note [Unused parameters].
void Reducer::order_buckets() {
  if (!launch_order_.empty() || buckets_.empty()) {
    return;
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    launch_order_.push_back(i);
  }
  early_launches_ = partial_begin_;
  if (buckets_.back().layout().has_flag) {
    early_launches_ = std::min(early_launches_, buckets_.size() - 1);
  }
  if (!reachable_work_) {
    return;
  }
  std::exchange(reachable_work_, std::nullopt)->wait();
  if (reachable_counts_.is_meta()) {
    return;
  }
  const auto counts = reachable_counts_.cpu();
  const auto reach = counts.accessor<int64_t, 1>();
  const int64_t with_inputs = reach[static_cast<int64_t>(parameters_.size())];
  const auto is_filled_by_all = [&](size_t bucket) {
    const auto& slots = buckets_[bucket].slots();
    return std::all_of(slots.begin(), slots.end(), [&](const auto& slot) {
      return reach[static_cast<int64_t>(slot.parameter)] == with_inputs;
    });
  };
  const auto begin = launch_order_.begin();
  const auto late = std::stable_partition(
      begin,
      begin + static_cast<std::ptrdiff_t>(early_launches_),
      is_filled_by_all);
  early_launches_ = static_cast<size_t>(late - begin);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].is_used_anywhere = reach[static_cast<int64_t>(i)] > 0;
  }
}

void Reducer::launch_ready_buckets() {
  order_buckets();
  const auto is_waited_for = [&](size_t bucket) {
    const auto& trigger = buckets_[bucket].layout().trigger;
    return trigger && !parameters_[*trigger].is_ready;
  };
  while (launched_ < early_launches_) {
    const size_t next = launch_order_[launched_];
    if (waiting_for_[next] != 0 || is_waited_for(next)) {
      return;
    }
    launch(next);
  }
}

bool Reducer::is_skipped(const GradientBucket& bucket) const {
  const auto& slots = bucket.slots();
  // In a Join no bucket is skipped, because a replica that ran out of inputs
  // may have accumulated gradients that the graphs of the others do not reach.
  return config_.options.skip_all_reduce_unused_params && !join_ &&
         std::none_of(slots.begin(), slots.end(), [&](const auto& slot) {
           return parameters_[slot.parameter].is_used_anywhere;
         });
}

void Reducer::launch(size_t index) {
  if (launched_ == 0 && join_) {
    join_->confirm();
  }
  auto& bucket = buckets_[index];
  if (!bucket.layout().pending) {
    bucket.fill(divisor(bucket));
    keep_local_norm(index);
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
  ++launched_;
}

data_parallel::BucketFuture Reducer::start(size_t index) {
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

data_parallel::GradBucket Reducer::as_seen_by_hook(size_t index) const {
  const auto& bucket = buckets_[index];
  const auto next =
      launch_order_.begin() + static_cast<std::ptrdiff_t>(launched_) + 1;
  const bool is_last =
      std::all_of(next, launch_order_.end(), [&](const size_t later) {
        return is_skipped(buckets_[later]);
      });
  data_parallel::GradBucket seen{
      .index = index,
      .is_last = is_last,
      .buffer = bucket.gradients_only(),
      .gradients = bucket.views(),
      .parameters = {},
      .names = {},
      .group = config_.groups[bucket.layout().group].group};
  for (const auto& slot : bucket.slots()) {
    const auto& state = parameters_[slot.parameter].state;
    seen.parameters.push_back(data_parallel::local_part(state.tensor));
    seen.names.push_back(state.name);
  }
  return seen;
}

void Reducer::check_finite(const GradientBucket& bucket) {
  const auto is_finite = [](const at::Tensor& values) {
    const auto dense = values.is_sparse() ? values._values() : values;
    if (dense.numel() == 0 ||
        !(dense.is_floating_point() || dense.is_complex())) {
      return true;
    }
    const auto parts = dense.is_complex() ? at::view_as_real(dense) : dense;
    return std::isfinite(parts.sum(at::kFloat).item<double>()) ||
           parts.isfinite().all().item<bool>();
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

void Reducer::reduce_partial_bucket(size_t index) {
  auto& bucket = buckets_[index];
  bucket.fill(divisor(bucket));
  keep_local_norm(index);
  const auto& spec = *bucket.layout().pending;
  // The name has no index, because tensor-parallel ranks with local tensors of
  // other sizes can number their buckets differently.
  constexpr std::string_view name = "ddp bucket Partial gradients";
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
      copy_unused_to_bucket(parameter);
    }
  }
  order_buckets();
  while (launched_ < buckets_.size()) {
    const size_t next = launch_order_[launched_];
    if (is_skipped(buckets_[next])) {
      ++launched_;
      continue;
    }
    if (next >= partial_begin_) {
      reduce_partial_bucket(next);
    }
    launch(next);
  }
  if (!is_status_late()) {
    send_status();
  }
}

void Reducer::wait_for_buckets() {
  for (size_t i = 0; i < futures_.size(); ++i) {
    if (!futures_[i]) {
      continue;
    }
    auto future = std::exchange(futures_[i], std::nullopt);
    if (!hook_) {
      take_result(i, future->wait());
      continue;
    }
    try {
      take_result(i, future->wait());
    } catch (const mesh::CommError&) {
      throw;
    } catch (...) {
      // All replicas are already reducing the other buckets, so the error is
      // thrown at the end.
      own_error_ = own_error_ ? own_error_ : std::current_exception();
      report_hook(i);
    }
  }
  if (is_status_late()) {
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
    report_hook(index);
  } else if (!result.is_same(buffer)) {
    buffer.copy_(result);
  }
}

void Reducer::report_hook(size_t bucket) {
  for (const auto& slot : buckets_[bucket].slots()) {
    parameters_[slot.parameter].problem = GradientProblem::kWrongHookResult;
  }
}

// Returns true if the status is sent after the reductions, because the result
// of a hook is known only then. check_for_nan_in_grad uses the same path.
bool Reducer::is_status_late() const {
  return hook_ || config_.options.check_for_nan_in_grad;
}

bool Reducer::has_status_message() const {
  if (dp_.size() == 1) {
    return false;
  }
  return is_status_late() || config_.options.find_unused_parameters ||
         buckets_.empty() || !buckets_.back().layout().has_flag;
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
  if (finds_unused_in_each_step(config_.options)) {
    send_use_in_groups();
  }
}

// Sends how many ranks use each parameter that has a group of its own.
void Reducer::send_use_in_groups() {
  for (size_t i = 1; i < config_.groups.size(); ++i) {
    std::vector<int64_t> counts;
    for (const auto& parameter : parameters_) {
      if (parameter.group == i) {
        counts.push_back(parameter.is_used ? 1 : 0);
      }
    }
    auto& use = group_use_.emplace_back();
    use.counts = at::tensor(counts, at::kLong).to(device_);
    use.work = config_.groups[i].group.all_reduce(
        use.counts, mesh::ReduceOp::kSum, "ddp used parameters");
  }
}

void Reducer::receive_status() {
  const bool is_dynamic = finds_unused_in_each_step(config_.options);
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
    receive_use_in_groups();
  } else if (is_dynamic && !status_.defined()) {
    for (auto& parameter : parameters_) {
      parameter.is_used_anywhere = parameter.is_used;
    }
  }
}

void Reducer::receive_use_in_groups() {
  for (size_t i = 0; i < group_use_.size(); ++i) {
    group_use_[i].work.wait();
    const auto counts = group_use_[i].counts.cpu();
    const auto values = counts.accessor<int64_t, 1>();
    int64_t next = 0;
    for (auto& parameter : parameters_) {
      if (parameter.group == i + 1) {
        parameter.is_used_anywhere = values[next++] > 0;
      }
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

// Returns true if a tensor-parallel rank has a problem. One local tensor of a
// parameter can hold a NaN while the others do not.
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
