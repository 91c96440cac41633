// Which bucket a gradient goes to, and how it gets there and back.
#include <algorithm>
#include <tuple>
#include <utility>

#include <torch/torch.h>

#include "ddp/reducer.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "dtensor/gradient.h"
#include "mesh/error.h"

namespace weft::ddp {
namespace {

/// The gradient is a pending sum of more than one term.
bool is_pending(const dtensor::DTensorSpec& spec) {
  for (int64_t i = 0; i < spec.mesh_ndim(); ++i) {
    if (spec.placement(i).is_partial() && spec.mesh().size(i) > 1) {
      return true;
    }
  }
  return false;
}

/// The spec of a gradient that is a pending sum.
std::optional<dtensor::DTensorSpec> pending_spec(const at::Tensor& gradient) {
  const auto* impl = dtensor::dtensor_impl(gradient);
  return impl && is_pending(impl->spec()) ? std::optional(impl->spec())
                                          : std::nullopt;
}

/// A number that differs between specs that are reduced differently, the same
/// on all ranks.
int64_t kind_of(const std::optional<dtensor::DTensorSpec>& pending) {
  uint64_t kind = 0;
  if (pending) {
    for (const auto& placement : pending->placements()) {
      kind = kind * 1000003 + static_cast<uint64_t>(placement.code()) + 1;
    }
  }
  return static_cast<int64_t>(kind);
}

/// The number of `key` in the order of first appearance.
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

std::vector<std::vector<size_t>> Reducer::plan(
    const std::vector<size_t>& order) const {
  using Key = std::tuple<c10::ScalarType, c10::Device, const void*>;
  std::vector<Key> keys;
  std::vector<BucketItem> items;
  for (const auto& parameter : parameters_) {
    const auto local = local_part(parameter.state.tensor);
    const void* spec = parameter.pending ? parameter.pending->id() : nullptr;
    items.push_back(
        {.bytes = static_cast<int64_t>(local.nbytes()),
         .group =
             number_of(keys, Key(local.scalar_type(), local.device(), spec))});
  }
  std::vector<size_t> immediate;
  if (dp_.size() > 1) {
    for (const size_t i : order) {
      if (!parameters_[i].pending) {
        immediate.push_back(i);
      }
    }
  }
  std::vector<size_t> pending;
  for (size_t i = parameters_.size(); i-- > 0;) {
    if (parameters_[i].pending) {
      pending.push_back(i);
    }
  }
  auto buckets = plan_buckets(items, immediate, options_.caps);
  for (auto& bucket : plan_buckets(items, pending, options_.caps)) {
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

// Which kind of tensor the first parameter of a bucket is; -1 if the others
// are of other kinds.
int64_t Reducer::kind_of_bucket(const std::vector<size_t>& bucket) const {
  using Key = std::tuple<c10::ScalarType, c10::Device, const void*>;
  std::vector<Key> keys;
  for (const size_t i : bucket) {
    const auto local = local_part(parameters_[i].state.tensor);
    const auto& pending = parameters_[i].pending;
    number_of(
        keys,
        Key(local.scalar_type(),
            local.device(),
            pending ? pending->id() : nullptr));
  }
  if (keys.size() != 1) {
    return -1;
  }
  return std::get<2>(keys.front()) == nullptr ? 0 : 1;
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
      mesh::ErrorContext{dp_.describe_rank()},
      "the bucket layout that was set is not one of these parameters on this "
      "mesh: it has ",
      all(layout).size(),
      " of ",
      all(planned).size(),
      " parameters, or mixes dtypes or pending sums in a bucket. Set a layout "
      "that bucket_names() gave on the same mesh, or none.");
}

void Reducer::set_bucket_layout(
    const std::vector<std::vector<std::string>>& layout) {
  const std::lock_guard lock(mutex_);
  const auto where = [&] { return mesh::ErrorContext{dp_.describe_rank()}; };
  WEFT_CHECK(
      !has_buckets_,
      "ddp",
      where(),
      "buckets exist already: set a layout before the first backward.");
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
          found == names_.end() ? ", which is no trainable parameter."
                                : " twice.");
      is_used[index] = true;
      bucket.push_back(index);
    }
  }
  layout_ = std::move(indices);
}

void Reducer::make_buckets() {
  std::vector<int64_t> kinds;
  for (auto& parameter : parameters_) {
    parameter.pending = pending_spec(parameter.state.tensor.grad());
    kinds.push_back(kind_of(parameter.pending));
  }
  auto assignment = plan(agree_on_order(replicas(), ready_, kinds));
  if (!layout_.empty()) {
    check_layout(layout_, assignment);
    assignment = layout_;
  }
  for (size_t b = 0; b < assignment.size(); ++b) {
    std::vector<at::Tensor> tensors;
    for (size_t slot = 0; slot < assignment[b].size(); ++slot) {
      auto& parameter = parameters_[assignment[b][slot]];
      parameter.bucket = b;
      parameter.slot = slot;
      tensors.push_back(parameter.state.tensor);
    }
    const auto& pending = parameters_[assignment[b].front()].pending;
    const bool has_flag = dp_.size() > 1 && b + 1 == assignment.size();
    buckets_.emplace_back(assignment[b], tensors, pending, has_flag);
    pending_begin_ += pending ? 0 : 1;
  }
  has_buckets_ = true;
}

void Reducer::place(const Parameter& parameter) const {
  const auto& leaf = parameter.state.tensor;
  const auto* impl = dtensor::dtensor_impl(leaf);
  auto* gradient = dtensor::dtensor_impl(leaf.grad());
  if (!gradient || !impl) {
    return;
  }
  const auto& want = parameter.pending ? *parameter.pending : impl->spec();
  if (gradient->spec() == want) {
    return;
  }
  if (is_pending(gradient->spec())) {
    // Not as in the first backward: reduced at once.
    leaf.mutable_grad() = dtensor::redistribute(
        leaf.grad(), gradient->spec().without_partial().placements());
  } else if (gradient->spec().has_partial()) {
    gradient->reset_local(
        gradient->local(), gradient->spec().without_partial());
  }
  if (parameter.pending) {
    dtensor::make_gradient_partial(leaf.grad(), want);
  }
}

void Reducer::put(const Parameter& parameter, double divisor) {
  place(parameter);
  if (!parameter.bucket) {
    return;
  }
  const auto& leaf = parameter.state.tensor;
  const auto where = [&] { return mesh::ErrorContext{dp_.describe_rank()}; };
  WEFT_CHECK(
      leaf.grad().layout() == at::kStrided,
      "ddp",
      where(),
      "the gradient of ",
      parameter.state.name,
      " is sparse. Use dense gradients, e.g. EmbeddingOptions.sparse(false).");
  WEFT_CHECK(
      !leaf.grad().requires_grad(),
      "ddp",
      where(),
      "the gradient of ",
      parameter.state.name,
      " is itself part of a graph: backward() with create_graph cannot be "
      "reduced over replicas. Run it under no_sync() or on module().");
  auto& bucket = buckets_[*parameter.bucket];
  const auto local = local_part(leaf.grad());
  const auto& view = bucket.slots()[parameter.slot].view;
  WEFT_CHECK(
      local.sizes() == view.sizes() &&
          local.scalar_type() == view.scalar_type(),
      "ddp",
      where(),
      "the gradient of ",
      parameter.state.name,
      " changed from ",
      view.sizes(),
      " ",
      view.scalar_type(),
      " to ",
      local.sizes(),
      " ",
      local.scalar_type(),
      " on this rank. Wrap the model after it was converted or placed.");
  bucket.put(parameter.slot, local, divisor);
  if (options_.gradient_as_bucket_view) {
    leaf.mutable_grad() = bucket.gradient_before_reduction(parameter.slot);
  }
}

void Reducer::publish() {
  for (auto& bucket : buckets_) {
    for (const auto& slot : bucket.slots()) {
      const auto& leaf = parameters_[slot.parameter].state.tensor;
      auto local = local_part(leaf.grad());
      if (!options_.gradient_as_bucket_view) {
        local.copy_(slot.view);
      }
      if (bucket.pending()) {
        dtensor::dtensor_impl(leaf.grad())
            ->reset_local(local, dtensor::dtensor_impl(leaf)->spec());
      }
    }
  }
}

std::vector<std::vector<std::string>> Reducer::bucket_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<size_t>> plans;
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
  std::vector<std::vector<std::string>> names;
  for (const auto& indices : plans) {
    names.emplace_back();
    for (const size_t i : indices) {
      names.back().push_back(names_[i]);
    }
  }
  return names;
}

} // namespace weft::ddp
