#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "data_parallel/parameters/parameter_cast.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "fsdp/unit.h"
#include "mesh/error/error.h"

// Note [Memory of gradients]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// The sums of gradients are in memory of the unit, which each pass uses again.
// It is allocated for all units when the first pass begins: allocations between
// those of a backward would fragment the heap. If there are gradients of
// earlier passes, or sums have another dtype than shards, the sums arrive in a
// message's memory and are added or cast. If a caller keeps a gradient beyond
// zero_grad(), the unit allocates new memory.

namespace weft::fsdp {
namespace {

/// Returns the mesh dim whose sum turns `spec` into `want`. Returns nullopt if
/// they differ in more than that.
std::optional<int64_t> dim_to_sum(
    const dtensor::DTensorSpec& spec,
    const dtensor::DTensorSpec& want) {
  std::optional<int64_t> found;
  for (int64_t dim = 0; dim < want.mesh_ndim(); ++dim) {
    if (spec.placement(dim) == want.placement(dim)) {
      continue;
    }
    if (found || !spec.placement(dim).is_partial(mesh::ReduceOp::kSum) ||
        !want.placement(dim).is_replicate()) {
      return std::nullopt;
    }
    found = dim;
  }
  return found;
}

} // namespace

at::Tensor Unit::gradient_parts_of(const at::Tensor& message, size_t index)
    const {
  return message.narrow(
      1, states_[index].gradient_offset, parameters_[index].part_numel());
}

void Unit::begin_backward() {
  is_reduced_ = false;
  awaited_ = 0;
  for (auto& part : parts_) {
    lay_out_gradients(part);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    states_[i].has_gradient = false;
    states_[i].is_counted = false;
    const bool is_awaited =
        states_[i].is_listened_to && parameters_[i].tensor().requires_grad();
    awaited_ += is_awaited ? 1 : 0;
  }
}

// Lays out the gradients of all parameters that are or were trained, so that
// ranks that used different parameters have the same layout.
void Unit::lay_out_gradients(Part& part) {
  part.gradient_slots.clear();
  part.gradient_numel = 0;
  for (const size_t index : part.parameters) {
    auto& state = states_[index];
    state.gradient_slot = -1;
    if (state.is_listened_to) {
      state.gradient_slot = std::ssize(part.gradient_slots);
      state.gradient_offset = part.gradient_numel;
      part.gradient_slots.push_back(index);
      part.gradient_numel += parameters_[index].part_numel();
    }
  }
  const auto numel = part.gradient_numel + std::ssize(part.gradient_slots);
  if (numel > 0 && (!part.sums.defined() || part.sums.numel() != numel)) {
    part.sums = at::empty({numel}, part.shards.options());
  }
}

bool Unit::is_trained() const {
  return std::ranges::any_of(parameters_, [](const auto& parameter) {
    return parameter.tensor().requires_grad();
  });
}

bool Unit::has_frozen() const {
  return std::ranges::any_of(parameters_, [](const auto& parameter) {
    return !parameter.tensor().requires_grad();
  });
}

bool Unit::has_gradients() const {
  return std::ranges::any_of(
      states_, [](const auto& state) { return state.is_counted; });
}

bool Unit::count_gradient(size_t index) {
  const bool is_new = !std::exchange(states_[index].is_counted, true);
  return is_new && --awaited_ == 0;
}

double Unit::divisor() const {
  const auto all = group_.size() * (replicas_ ? replicas_->size() : 1);
  const auto ranks = contributors_ > 0 ? contributors_ : all;
  return options_.reduce_op == mesh::ReduceOp::kAvg ? static_cast<double>(ranks)
                                                    : 1.0;
}

void Unit::check_gradient(size_t index, const at::Tensor& gradient) const {
  const auto& parameter = parameters_[index];
  const mesh::ErrorContext where{group_.name()};
  WEFT_CHECK(
      !data_parallel::local_part(gradient).is_sparse(),
      "fsdp",
      where,
      "the gradient of ",
      parameter.name(),
      " is sparse and cannot be sharded. Set EmbeddingOptions.sparse to "
      "false.");
  WEFT_CHECK(
      data_parallel::local_part(gradient).sizes() ==
          parameter.unsharded_sizes(),
      "fsdp",
      where,
      "the gradient of ",
      parameter.name(),
      " has sizes ",
      data_parallel::local_part(gradient).sizes(),
      " on this rank instead of ",
      parameter.unsharded_sizes(),
      ". Do not set .grad() between forward and the end of backward.");
  WEFT_CHECK(
      !gradient.requires_grad(),
      "fsdp",
      where,
      "the gradient of ",
      parameter.name(),
      " requires grad itself, and gradients of backward() with create_graph "
      "cannot be reduced over ranks. Run that backward() under no_sync().");
}

void Unit::allocate_gradients(Part& part, UnitMemory& memory) {
  if (!part.gradients.defined()) {
    const auto flags = std::ssize(part.gradient_slots);
    part.gradients = memory.messages.take_tensor(
        {group_.size(), part.gradient_numel + flags},
        part.shards.options().dtype(part.gradient_dtype));
    part.gradients.narrow(1, part.gradient_numel, flags).zero_();
  }
}

void Unit::take_gradient(size_t index, UnitMemory& memory) {
  const at::NoGradGuard no_grad;
  auto& state = states_[index];
  auto& part = parts_[state.part];
  const auto& parameter = parameters_[index];
  auto& slot = parameter.tensor().mutable_grad();
  check_gradient(index, slot);
  auto gradient = std::exchange(slot, at::Tensor());
  allocate_gradients(part, memory);
  part.gradients.select(1, part.gradient_numel + state.gradient_slot).fill_(1);
  state.has_gradient = true;
  if (const auto* impl = dtensor::dtensor_impl(gradient)) {
    const auto& want = parameter.placement().unsharded;
    if (impl->spec().mesh_ndim() == want.mesh_ndim() &&
        !(impl->spec() == want)) {
      // Sums over other mesh dims also use the dtype of reduction.
      gradient = data_parallel::in_dtype(gradient, part.gradient_dtype);
      if (dim_to_sum(dtensor::spec_of(gradient), want)) {
        state.pending = gradient;
        return;
      }
      gradient = dtensor::redistribute(gradient, want.placements());
    }
  }
  write_gradient(index, data_parallel::local_part(gradient));
}

void Unit::write_gradient(size_t index, const at::Tensor& local) {
  parameters_[index].write_gradient(
      local,
      divisor(),
      gradient_parts_of(parts_[states_[index].part].gradients, index));
}

// Sends one message per mesh dim, because gradients of norms and biases are
// small.
void Unit::sum_pending_gradients(const Part& part) {
  std::vector<std::pair<mesh::Communicator*, std::vector<size_t>>> by_group;
  for (const size_t index : part.gradient_slots) {
    const auto& pending = states_[index].pending;
    if (!pending.defined()) {
      continue;
    }
    const auto& spec = dtensor::spec_of(pending);
    const auto dim = dim_to_sum(spec, parameters_[index].placement().unsharded);
    auto* group = &spec.mesh().group(*dim);
    auto found = std::ranges::find(
        by_group, group, [](const auto& each) { return each.first; });
    if (found == by_group.end()) {
      found = by_group.insert(found, {group, {}});
    }
    found->second.push_back(index);
  }
  for (const auto& [group, indices] : by_group) {
    std::vector<at::Tensor> locals;
    for (const size_t index : indices) {
      locals.push_back(
          data_parallel::local_part(states_[index].pending).reshape({-1}));
    }
    auto sums = at::cat(locals);
    group->all_reduce(sums, mesh::ReduceOp::kSum, name_).wait();
    int64_t offset = 0;
    for (const size_t index : indices) {
      const auto pending = std::exchange(states_[index].pending, at::Tensor());
      const auto& local = data_parallel::local_part(pending);
      write_gradient(
          index, sums.narrow(0, offset, local.numel()).view(local.sizes()));
      offset += local.numel();
    }
  }
}

void Unit::cast_own_gradient(size_t index) {
  const auto dtype = parts_[states_[index].part].gradient_dtype;
  auto& gradient = parameters_[index].tensor().mutable_grad();
  if (gradient.scalar_type() != dtype && !gradient.requires_grad()) {
    gradient = data_parallel::in_dtype(gradient, dtype);
  }
}

void Unit::set_gradient_aside(size_t index) {
  const auto& parameter = parameters_[index];
  auto& gradient = parameter.tensor().mutable_grad();
  const auto* impl = dtensor::dtensor_impl(gradient);
  const auto& placement = parameter.placement();
  if (impl && (impl->spec() == placement.sharded ||
               impl->spec() == placement.unreduced)) {
    states_[index].aside = std::exchange(gradient, at::Tensor());
  }
}

void Unit::start_reduce(UnitMemory& memory) {
  const at::NoGradGuard no_grad;
  // Takes gradients that no_sync() accumulated and this backward did not add
  // to.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i].is_listened_to && !states_[i].has_gradient) {
      set_gradient_aside(i);
      if (parameters_[i].tensor().grad().defined()) {
        take_gradient(i, memory);
      }
    }
  }
  for (auto& part : parts_) {
    if (part.gradient_slots.empty()) {
      continue;
    }
    allocate_gradients(part, memory);
    sum_pending_gradients(part);
    for (const size_t index : part.gradient_slots) {
      if (!states_[index].has_gradient) {
        gradient_parts_of(part.gradients, index).zero_();
      }
    }
    part.reduced = place_for_sums(part, memory);
    if (group_.size() > 1) {
      part.reduction = group_.reduce_scatter(
          part.reduced, part.gradients, mesh::ReduceOp::kSum, name_);
    } else {
      part.reduced.copy_(part.gradients.view({-1}));
    }
  }
  is_reduced_ = true;
}

// See Note [Memory of gradients].
at::Tensor Unit::place_for_sums(Part& part, UnitMemory& memory) {
  const at::IntArrayRef sizes = part.gradients.sizes().slice(1);
  part.adds_to_earlier = std::ranges::any_of(
      part.parameters,
      [&](size_t index) { return states_[index].aside.defined(); });
  part.is_reduced_in_message =
      part.adds_to_earlier || part.gradient_dtype != part.dtype;
  if (!part.adds_to_earlier &&
      (!part.sums.defined() || part.sums.storage().use_count() > 1)) {
    part.sums = at::empty(sizes, part.shards.options());
  }
  return part.is_reduced_in_message
             ? memory.messages.take_tensor(sizes, part.gradients.options())
             : part.sums;
}

void Unit::finish_reduce_scatter(Part& part, UnitMemory& memory) {
  part.reduction.wait();
  part.reduction = mesh::Work();
  if (part.gradients.defined()) {
    memory.messages.give_tensor(std::move(part.gradients));
  }
}

bool Unit::start_reduce_over_replicas(UnitMemory& memory) {
  const at::NoGradGuard no_grad;
  for (auto& part : parts_) {
    if (!part.reduced.defined()) {
      continue;
    }
    finish_reduce_scatter(part, memory);
    part.is_reduced_over_replicas = true;
    if (has_other_replicas()) {
      add_unreduced(part);
      if (comm_hook_) {
        start_comm_hook(part);
      } else {
        part.reduction =
            replicas_->all_reduce(part.reduced, mesh::ReduceOp::kSum, name_);
      }
    }
  }
  return has_other_replicas();
}

void Unit::set_comm_hook(
    std::shared_ptr<data_parallel::CommHook> hook,
    size_t bucket) {
  comm_hook_ = std::move(hook);
  first_bucket_ = bucket;
}

// The flags are sums of 0 and 1, which a hook might round, so they are reduced
// without it.
void Unit::start_comm_hook(Part& part) {
  data_parallel::GradBucket bucket{
      .index = first_bucket_ + static_cast<size_t>(&part - parts_.data()),
      .is_last = false,
      .buffer = part.reduced.narrow(0, 0, part.gradient_numel),
      .gradients = {},
      .parameters = {},
      .names = {},
      .group = *replicas_};
  for (const size_t index : part.gradient_slots) {
    const auto& parameter = parameters_[index];
    const auto rows = part.reduced.narrow(
        0, states_[index].gradient_offset, parameter.part_numel());
    bucket.gradients.push_back(data_parallel::local_part(
        parameter.sharded_gradient(rows, parameter.placement().sharded)));
    bucket.parameters.push_back(parameter.shard());
    bucket.names.push_back(parameter.name());
  }
  if (comm_hook_->divides()) {
    bucket.buffer.mul_(replicas_->size());
  }
  part.reduction = replicas_->all_reduce(
      part.reduced.narrow(
          0, part.gradient_numel, std::ssize(part.gradient_slots)),
      mesh::ReduceOp::kSum,
      name_);
  part.by_hook = comm_hook_->run(bucket);
}

void Unit::finish_comm_hook(Part& part) {
  if (!part.by_hook) {
    return;
  }
  const auto result = std::exchange(part.by_hook, std::nullopt)->wait();
  auto buffer = part.reduced.narrow(0, 0, part.gradient_numel);
  WEFT_CHECK(
      result.defined() && result.sizes() == buffer.sizes() &&
          result.scalar_type() == buffer.scalar_type(),
      "fsdp",
      mesh::ErrorContext{replicas_->name()},
      comm_hook_->name(),
      " returned a tensor of another shape or dtype for unit ",
      name_,
      ". Return bucket.buffer or a tensor like it.");
  if (result.const_data_ptr() != buffer.const_data_ptr()) {
    buffer.copy_(result);
  }
}

void Unit::skip_reduce_over_replicas(UnitMemory& memory) {
  for (auto& part : parts_) {
    if (part.reduced.defined()) {
      finish_reduce_scatter(part, memory);
      part.is_reduced_over_replicas = !has_other_replicas();
    }
  }
}

// Adds the sums of passes that were not reduced over the replicas to the
// message that will be.
void Unit::add_unreduced(Part& part) {
  for (size_t slot = 0; slot < part.gradient_slots.size(); ++slot) {
    const size_t index = part.gradient_slots[slot];
    const auto& parameter = parameters_[index];
    const auto& aside = states_[index].aside;
    if (!aside.defined() ||
        !(dtensor::spec_of(aside) == parameter.placement().unreduced)) {
      continue;
    }
    const auto sum = part.reduced.narrow(
        0, states_[index].gradient_offset, parameter.part_numel());
    data_parallel::local_part(
        parameter.sharded_gradient(sum, parameter.placement().sharded))
        .add_(data_parallel::local_part(aside));
    part.reduced.narrow(0, part.gradient_numel + static_cast<int64_t>(slot), 1)
        .fill_(1);
    states_[index].is_aside_sent = true;
  }
}

void Unit::finish_reduce(UnitMemory& memory) {
  const at::NoGradGuard no_grad;
  for (auto& part : parts_) {
    if (!part.reduced.defined()) {
      continue;
    }
    part.reduction.wait();
    part.reduction = mesh::Work();
    finish_comm_hook(part);
    const auto flags = reduced_flags(part);
    for (size_t slot = 0; slot < flags.size(); ++slot) {
      if (flags[slot]) {
        add_sum(part, part.gradient_slots[slot]);
      }
    }
    give_reduced(part, memory);
  }
}

void Unit::give_reduced(Part& part, UnitMemory& memory) {
  if (part.reduced.defined() && part.is_reduced_in_message) {
    memory.messages.give_tensor(std::move(part.reduced));
  }
  part.reduced = at::Tensor();
}

void Unit::add_sum(Part& part, size_t index) {
  auto& state = states_[index];
  const auto part_of = [&](const at::Tensor& sums) {
    return sums.narrow(
        0, state.gradient_offset, parameters_[index].part_numel());
  };
  const auto& placement = parameters_[index].placement();
  const auto& spec =
      part.is_reduced_over_replicas ? placement.sharded : placement.unreduced;
  auto sum = part_of(part.reduced);
  if (state.aside.defined()) {
    auto* impl = dtensor::dtensor_impl(state.aside);
    const auto rows = data_parallel::local_part(
        parameters_[index].sharded_gradient(sum, spec));
    if (std::exchange(state.is_aside_sent, false)) {
      impl->local().copy_(rows);
      impl->reset_local(impl->local(), spec);
      return;
    }
    if (!(impl->spec() == spec)) {
      dtensor::make_gradient_partial(state.aside, spec);
    }
    impl->local().add_(rows);
    return;
  }
  if (part.adds_to_earlier) {
    sum = sum.to(part.dtype, /*non_blocking=*/false, /*copy=*/true);
  } else if (part.is_reduced_in_message) {
    sum = part_of(part.sums).copy_(sum);
  }
  state.aside = parameters_[index].sharded_gradient(sum, spec);
}

// Returns for each slot of `part`, in their order, whether a rank has a
// gradient.
std::vector<bool> Unit::reduced_flags(const Part& part) const {
  std::vector<bool> flags;
  if (part.reduced.is_meta()) { // The flags have no values.
    for (const size_t index : part.gradient_slots) {
      flags.push_back(states_[index].has_gradient);
    }
    return flags;
  }
  const auto sums =
      part.reduced
          .narrow(0, part.gradient_numel, std::ssize(part.gradient_slots))
          .to(at::kCPU, at::kFloat);
  for (int64_t i = 0; i < sums.numel(); ++i) {
    flags.push_back(sums.const_data_ptr<float>()[i] != 0.0F);
  }
  return flags;
}

void Unit::set_gradients() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto sum = std::exchange(states_[i].aside, at::Tensor());
    if (sum.defined()) {
      parameters_[i].tensor().mutable_grad() = sum;
    }
  }
}

void Unit::keep_own_gradients(UnitMemory& memory) {
  for (auto& part : parts_) {
    part.reduction.wait();
    part.reduction = mesh::Work();
    if (part.by_hook) {
      std::exchange(part.by_hook, std::nullopt)->wait();
    }
    if (part.gradients.defined()) {
      memory.messages.give_tensor(std::move(part.gradients));
    }
    give_reduced(part, memory);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    states_[i].has_gradient = false;
    states_[i].pending = at::Tensor();
    states_[i].is_aside_sent = false;
    auto aside = std::exchange(states_[i].aside, at::Tensor());
    auto& gradient = parameters_[i].tensor().mutable_grad();
    if (!aside.defined()) {
      continue;
    }
    if (gradient.defined()) {
      // .grad() holds one tensor. So the sum that was reduced before becomes a
      // part of this rank's gradient in the next reduction, on the first
      // replica only.
      const auto& unreduced = parameters_[i].placement().unreduced;
      if (!(dtensor::spec_of(aside) == unreduced)) {
        dtensor::make_gradient_partial(aside, unreduced);
      }
      parameters_[i].add_to_own_rows(
          data_parallel::local_part(gradient),
          data_parallel::local_part(aside),
          divisor());
    } else {
      gradient = aside;
    }
  }
}

} // namespace weft::fsdp
