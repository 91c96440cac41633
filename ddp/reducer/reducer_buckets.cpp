// The assignment of gradients to buckets.
#include <algorithm>
#include <tuple>
#include <utility>

#include <torch/torch.h>

#include "ddp/reducer/auto_bucketing.h"
#include "ddp/reducer/gradient_kind.h"
#include "ddp/reducer/reducer.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

template <class Key>
int64_t number_of(std::vector<Key>& keys, const Key& key) {
  const auto found = std::find(keys.begin(), keys.end(), key);
  const auto number = found - keys.begin();
  if (found == keys.end()) {
    keys.push_back(key);
  }
  return number;
}

} // namespace

bool Reducer::is_reduced(const Parameter& parameter) const {
  const auto& options = config_.options;
  if (options.static_graph && !parameter.is_used_anywhere) {
    return false;
  }
  const auto& group = config_.groups[parameter.group];
  const bool keeps_low = options.mixed_precision &&
                         options.mixed_precision->keep_low_precision_grads;
  return parameter.pending || group.group.size() > 1 || group.divisor != 1.0 ||
         hook_ || parameter.is_delayed ||
         (keeps_low && parameter.reduce_dtype != parameter.full_dtype);
}

int64_t Reducer::reduced_bytes(const Parameter& parameter) {
  return data_parallel::local_part(parameter.state.tensor).numel() *
         static_cast<int64_t>(c10::elementSize(parameter.reduce_dtype));
}

Reducer::BucketKey Reducer::key_of(const Parameter& parameter) const {
  const auto local = data_parallel::local_part(parameter.state.tensor);
  return {
      parameter.is_sparse ? local.scalar_type() : parameter.reduce_dtype,
      local.device(),
      parameter.pending ? parameter.pending->id() : nullptr,
      parameter.group,
      parameter.is_sparse ? index_of(parameter) + 1 : 0,
      parameter.is_used_anywhere};
}

Reducer::Plan Reducer::plan(const std::vector<size_t>& order) const {
  std::vector<BucketKey> keys;
  std::vector<BucketItem> items;
  for (const auto& parameter : parameters_) {
    items.push_back(
        {.bytes = reduced_bytes(parameter),
         .group = number_of(keys, key_of(parameter))});
  }
  std::vector<size_t> immediate;
  std::vector<size_t> pending;
  for (const size_t i : order) {
    const auto& parameter = parameters_[i];
    if (!parameter.pending && !parameter.is_delayed && is_reduced(parameter)) {
      immediate.push_back(i);
    }
  }
  for (size_t i = parameters_.size(); i-- > 0;) {
    if (parameters_[i].pending && is_reduced(parameters_[i])) {
      pending.push_back(i);
    }
  }
  const auto caps = config_.options.bucket_mode == BucketMode::kPerParameter
                        ? BucketCaps{.first = 0, .rest = 0}
                        : config_.caps;
  auto buckets = plan_buckets(items, immediate, caps);
  // Buckets of parameters that no replica uses come last.
  std::stable_partition(buckets.begin(), buckets.end(), [&](const auto& each) {
    return parameters_[each.front()].is_used_anywhere;
  });
  insert_delayed(buckets);
  for (auto& bucket : plan_buckets(items, pending, caps)) {
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

// Inserts one bucket of all delayed parameters before the bucket of the
// parameter that triggers it.
void Reducer::insert_delayed(Plan& buckets) const {
  std::vector<size_t> delayed;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].is_delayed && !parameters_[i].pending) {
      delayed.push_back(i);
    }
  }
  if (delayed.empty()) {
    return;
  }
  const auto at =
      std::find_if(buckets.begin(), buckets.end(), [&](const auto& each) {
        return std::find(each.begin(), each.end(), *trigger()) != each.end();
      });
  buckets.insert(at, std::move(delayed));
}

std::optional<size_t> Reducer::trigger() const {
  const auto& name = config_.options.param_to_hook_all_reduce;
  const auto found = std::find(names_.begin(), names_.end(), name);
  return found == names_.end()
             ? std::nullopt
             : std::optional(static_cast<size_t>(found - names_.begin()));
}

// Returns 1 if the gradients of a bucket are Partial, 0 if they are not, and -1
// if its parameters cannot share a bucket.
int64_t Reducer::kind_of_bucket(const std::vector<size_t>& bucket) const {
  std::vector<BucketKey> keys;
  for (const size_t i : bucket) {
    number_of(keys, key_of(parameters_[i]));
  }
  if (keys.size() != 1) {
    return -1;
  }
  return parameters_[bucket.front()].pending ? 1 : 0;
}

void Reducer::check_layout(const Plan& layout, const Plan& planned) const {
  const auto all = [](const Plan& plan) {
    std::vector<size_t> indices;
    for (const auto& bucket : plan) {
      indices.insert(indices.end(), bucket.begin(), bucket.end());
    }
    std::sort(indices.begin(), indices.end());
    return indices;
  };
  std::vector<int64_t> kinds;
  for (const auto& bucket : layout) {
    kinds.push_back(kind_of_bucket(bucket));
  }
  WEFT_CHECK(
      all(layout) == all(planned) &&
          std::is_sorted(kinds.begin(), kinds.end()) &&
          (kinds.empty() || kinds.front() >= 0),
      "ddp",
      where(),
      "the bucket layout does not match these parameters on this mesh: it has ",
      all(layout).size(),
      " of ",
      all(planned).size(),
      " parameters, or mixes dtypes, groups or Partial gradients in a bucket. "
      "Set a layout from bucket_names() on the same mesh, or set none.");
}

void Reducer::set_bucket_layout(
    const std::vector<std::vector<std::string>>& layout) {
  const std::lock_guard lock(mutex_);
  WEFT_CHECK(
      !has_buckets_,
      "ddp",
      where(),
      "buckets already exist: set a layout before the first backward.");
  std::vector<bool> is_used(parameters_.size(), false);
  Plan indices;
  for (const auto& names : layout) {
    auto& bucket = indices.emplace_back();
    for (const auto& name : names) {
      const auto found = std::find(names_.begin(), names_.end(), name);
      const auto index = static_cast<size_t>(found - names_.begin());
      WEFT_CHECK(
          found != names_.end() && !is_used[index],
          "ddp",
          where(),
          "the bucket layout names ",
          name,
          found == names_.end() ? ", which is not a trainable parameter."
                                : " twice.");
      is_used[index] = true;
      bucket.push_back(index);
    }
  }
  layout_ = std::move(indices);
}

BackwardReport Reducer::report() const {
  BackwardReport result{.ready = ready_, .kinds = {}, .problems = problems()};
  for (const auto& parameter : parameters_) {
    const auto& grad = gradient(parameter);
    result.kinds.push_back(
        parameter.is_used && grad.defined() ? kind_of(grad) : kUnknownKind);
  }
  return result;
}

void Reducer::adopt_kinds(const std::vector<int64_t>& kinds) {
  const auto& options = config_.options;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& parameter = parameters_[i];
    parameter.is_used_anywhere = kinds[i] != kUnknownKind;
    parameter.is_sparse = kinds[i] == kSparseKind;
    if (const auto* impl = dtensor::dtensor_impl(parameter.state.tensor)) {
      parameter.pending = partial_of_kind(impl->spec(), kinds[i]);
    }
    if (options.static_graph) {
      parameter.times_expected = parameter.times_seen;
    }
  }
}

BucketLayout Reducer::layout_of(const std::vector<size_t>& bucket) const {
  const auto& options = config_.options;
  const auto& first = parameters_[bucket.front()];
  BucketLayout layout{
      .dtype = first.reduce_dtype,
      .group = first.group,
      .pending = first.pending,
      .trigger = first.is_delayed ? trigger() : std::nullopt,
      .has_flag = false,
      .is_batched = options.batched_grad_copy};
  if (first.is_sparse) {
    layout.memory = BucketMemory::kSparse;
  } else if (options.bucket_mode == BucketMode::kCoalesced) {
    layout.memory = BucketMemory::kInPlace;
  }
  return layout;
}

void Reducer::make_buckets() {
  has_agreed_error_ = true;
  const auto agreed = agree_on_order(replicas(), report());
  has_agreed_error_ = false;
  if (join_ &&
      std::all_of(agreed.kinds.begin(), agreed.kinds.end(), [](int64_t kind) {
        return kind == kUnknownKind;
      })) {
    // Every replica ran out of inputs before its first backward.
    return;
  }
  adopt_kinds(agreed.kinds);
  has_seen_graph_ = !is_shadow_;
  if (config_.options.auto_bucketing && layout_.empty()) {
    choose_caps(agreed.order);
  }
  auto assignment = plan(agreed.order);
  // A saved layout does not apply if this run reduces nothing.
  if (!layout_.empty() && !assignment.empty()) {
    check_layout(layout_, assignment);
    assignment = layout_;
  } else if (hook_) {
    hook_->on_rebuilt_buckets();
  }
  for (size_t b = 0; b < assignment.size(); ++b) {
    std::vector<at::Tensor> tensors;
    for (size_t slot = 0; slot < assignment[b].size(); ++slot) {
      auto& parameter = parameters_[assignment[b][slot]];
      parameter.bucket = b;
      parameter.slot = slot;
      tensors.push_back(parameter.state.tensor);
    }
    auto layout = layout_of(assignment[b]);
    layout.has_flag = dp_.size() > 1 && b + 1 == assignment.size() &&
                      layout.memory == BucketMemory::kFlat &&
                      config_.groups.size() == 1 && !hook_ &&
                      !config_.options.find_unused_parameters;
    partial_begin_ += layout.pending ? 0 : 1;
    buckets_.emplace_back(
        std::move(assignment[b]), std::move(tensors), std::move(layout));
    if (!config_.options.lazy_bucket_allocation) {
      buckets_.back().allocate();
    }
    waiting_for_.push_back(buckets_.back().slots().size());
  }
  futures_.resize(buckets_.size());
  has_buckets_ = true;
}

void Reducer::choose_caps(const std::vector<size_t>& order) {
  std::vector<GradientTiming> timings;
  for (const size_t i : order) {
    const auto& parameter = parameters_[i];
    if (!parameter.pending && is_reduced(parameter)) {
      timings.push_back(
          {.ready_ns = parameter.ready_ns, .bytes = reduced_bytes(parameter)});
    }
  }
  const auto cap = agree_on_cap(timings, dp_.group(int64_t{0}), device_);
  config_.caps = {.first = cap, .rest = cap};
}

Reducer::Plan Reducer::current_plan() const {
  Plan plans;
  if (has_buckets_) {
    for (const auto& bucket : buckets_) {
      plans.emplace_back();
      for (const auto& slot : bucket.slots()) {
        plans.back().push_back(slot.parameter);
      }
    }
  } else {
    std::vector<size_t> reversed;
    for (size_t i = parameters_.size(); i-- > 0;) {
      reversed.push_back(i);
    }
    plans = plan(reversed);
  }
  return plans;
}

std::vector<std::vector<std::string>> Reducer::bucket_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<std::string>> names;
  for (const auto& indices : current_plan()) {
    names.emplace_back();
    for (const size_t i : indices) {
      names.back().push_back(names_[i]);
    }
  }
  return names;
}

std::vector<int64_t> Reducer::bucket_sizes() const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> sizes;
  for (const auto& indices : current_plan()) {
    sizes.push_back(0);
    for (const size_t i : indices) {
      sizes.back() += reduced_bytes(parameters_[i]);
    }
  }
  return sizes;
}

} // namespace weft::ddp
