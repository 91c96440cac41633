#include "fsdp/schedule.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include "data_parallel/wrapped_module.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/parameter_hooks.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/error/error.h"

namespace weft::fsdp {
namespace {

bool runs_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

} // namespace

/// The hooks of one parameter, which may outlive the schedule.
class Schedule::Hooks final : public dtensor::ParameterHooks {
 public:
  Hooks(std::weak_ptr<Schedule> schedule, Unit& unit, size_t parameter)
      : schedule_(std::move(schedule)),
        unit_(&unit),
        parameter_(parameter),
        placement_(unit.parameters()[parameter].placement().unsharded) {}

  void before_use(bool is_forward) override {
    if (const auto schedule = schedule_.lock()) {
      schedule->before_use(*unit_, parameter_, is_forward);
    }
  }
  void before_gradient() override {
    if (const auto schedule = schedule_.lock()) {
      schedule->before_gradient(*unit_, parameter_);
    }
  }
  const dtensor::DTensorSpec& gradient_spec() const override {
    return placement_;
  }

 private:
  std::weak_ptr<Schedule> schedule_;
  Unit* unit_;
  size_t parameter_;
  dtensor::DTensorSpec placement_;
};

/// A hook on a node instead of a tensor. See dtensor::use_in_backward().
struct Schedule::OutputHook final : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& grads) override {
    if (const auto alive = schedule.lock()) {
      alive->begin_backward();
      if (unit) {
        alive->reshard_done(*unit);
        alive->use_in_backward(*unit);
      }
    }
    return grads;
  }

  std::weak_ptr<Schedule> schedule;
  Unit* unit = nullptr;
};

Schedule::Schedule(
    std::vector<std::unique_ptr<Unit>> units,
    const Unit* outermost,
    const ScheduleOptions& options,
    std::shared_ptr<std::atomic<int>> paused,
    std::shared_ptr<std::atomic<int>> without_all_reduce)
    : units_(std::move(units)),
      states_(units_.size()),
      prefetches_(units_.size()),
      outermost_(outermost),
      options_(options),
      paused_(std::move(paused)),
      without_all_reduce_(std::move(without_all_reduce)) {}

Schedule::~Schedule() = default;

void Schedule::start() {
  for (const auto& unit : units_) {
    const auto& parameters = unit->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& tensor = parameters[i].tensor();
      dtensor::dtensor_impl(tensor)->parameter_hooks =
          std::make_shared<Hooks>(weak_from_this(), *unit, i);
      dtensor::parameter_info(tensor).gradient_reduced_by_ddp = true;
    }
  }
}

size_t Schedule::index_of(const Unit& unit) const {
  const auto found = std::ranges::find_if(
      units_, [&](const auto& each) { return each.get() == &unit; });
  return static_cast<size_t>(found - units_.begin());
}

Schedule::UnitState& Schedule::state_of(const Unit& unit) {
  return states_[index_of(unit)];
}

void Schedule::start_gather(Unit& unit) {
  if (observer_ && !unit.is_gathered_soon()) {
    observer_->before_gather(index_of(unit));
  }
  unit.start_unshard(memory_);
}

void Schedule::gather(Unit& unit) {
  start_gather(unit);
  unit.unshard(memory_);
}

// Called again in later forwards, because parameters may be unfrozen.
void Schedule::listen_to(Unit& unit) {
  std::vector<at::Tensor> leaves;
  std::vector<size_t> indices;
  for (size_t i = 0; i < unit.parameters().size(); ++i) {
    const auto& tensor = unit.parameters()[i].tensor();
    if (!tensor.requires_grad() || unit.listens_to(i)) {
      continue;
    }
    unit.set_listens_to(i);
    // AccumulateGrad is created before the parameter has the dtype of
    // computation, in which its gradients arrive.
    tensor.set_grad_dtype(unit.parameters()[i].unsharded_dtype());
    leaves.push_back(tensor);
    indices.push_back(i);
    // Runs before autograd adds to .grad(). If place_gradient() runs for the
    // leaf, it calls before_gradient(), too.
    auto* impl = dtensor::dtensor_impl(tensor);
    tensor.register_hook([impl](const at::Tensor& gradient) {
      if (impl->parameter_hooks) {
        impl->parameter_hooks->before_gradient();
      }
      return gradient;
    });
  }
  if (!leaves.empty()) {
    gradient_hooks_.push_back(std::make_unique<data_parallel::GradientHooks>(
        leaves,
        [weak = weak_from_this(), &unit, indices](size_t i) {
          if (const auto alive = weak.lock()) {
            alive->on_gradient(unit, indices[i]);
          }
        },
        data_parallel::HookOwner::kFullyShard));
  }
}

bool Schedule::is_active() const {
  return is_in_forward() || runs_backward();
}

// Forward.

void Schedule::begin_forward() {
  if (forward_depth_ == 0 && !runs_backward()) {
    start_forward();
  }
  ++forward_depth_;
}

void Schedule::start_forward() {
  for (size_t i = 0; i < units_.size(); ++i) {
    listen_to(*units_[i]);
    units_[i]->drop_kept(memory_); // The parameters may have changed.
    states_[i] = {};
  }
  last_order_ = std::exchange(order_, {});
  last_used_ = nullptr;
  if (outermost_) {
    ++state_of(*outermost_).calls;
  }
}

void Schedule::end_forward(const std::vector<at::Tensor>& outputs) {
  if (--forward_depth_ > 0 || runs_backward()) {
    return;
  }
  if (outermost_) {
    --state_of(*outermost_).calls;
  }
  last_used_ = nullptr;
  for (const auto& unit : units_) {
    if (whole_depth_ > 0) {
      continue;
    }
    if (!at::GradMode::is_enabled() || unit->reshards_after_forward() ||
        !unit->is_unsharded()) { // A gather may be pending.
      unit->reshard(memory_);
    }
  }
  hook_outputs(nullptr, outputs);
}

void Schedule::abandon_forward() {
  if (--forward_depth_ > 0 || runs_backward()) {
    return;
  }
  abandon();
}

void Schedule::abandon() {
  last_used_ = nullptr;
  for (size_t i = 0; i < units_.size(); ++i) {
    states_[i] = {};
    try {
      units_[i]->reshard(memory_);
    } catch (const std::exception&) {
      // The pass has failed anyway; a pending gather may have failed, too.
    }
  }
}

void Schedule::begin_call(Unit& unit, std::vector<at::Tensor>& inputs) {
  if (runs_backward()) {
    use_in_backward(unit);
  } else if (is_in_forward()) {
    ++state_of(unit).calls;
    use_in_forward(unit);
  }
  const auto& policy = unit.mixed_precision();
  if (unit.is_ready_to_compute() && policy.cast_forward_inputs) {
    for (auto& input : inputs) {
      input = data_parallel::cast_floating_point(input, policy.param_dtype);
    }
  }
}

void Schedule::end_call(Unit& unit, std::vector<at::Tensor>& outputs) {
  for (auto& output : outputs) {
    output = data_parallel::cast_floating_point(
        output, unit.mixed_precision().output_dtype);
  }
  if (runs_backward() || !is_in_forward()) {
    return;
  }
  auto& state = state_of(unit);
  if (--state.calls == 0) {
    if (last_used_ == &unit) {
      last_used_ = nullptr;
    }
    if (unit.reshards_after_forward() && whole_depth_ == 0) {
      unit.reshard(memory_);
    }
  }
  hook_outputs(&unit, outputs);
}

void Schedule::hook_outputs(
    Unit* unit,
    const std::vector<at::Tensor>& outputs) {
  for (const auto& output : outputs) {
    if (!output.defined() || !output.requires_grad()) {
      continue;
    }
    // Hooks the node of the base as well: if the view is then changed in place,
    // backward runs the base's node and no longer the view's present one.
    const auto& base = output.is_view() ? output._base() : output;
    const auto add_hook = [&](const auto& node) {
      auto hook = std::make_unique<OutputHook>();
      hook->schedule = weak_from_this();
      hook->unit = unit;
      node->add_pre_hook(std::move(hook));
    };
    if (output.grad_fn()) {
      add_hook(output.grad_fn());
    }
    if (base.grad_fn() && base.grad_fn() != output.grad_fn()) {
      add_hook(base.grad_fn());
    }
  }
}

void Schedule::before_use(Unit& unit, size_t parameter, bool is_forward) {
  if (&unit == last_used_ && unit.is_unsharded()) {
    return;
  }
  if (runs_backward()) {
    begin_backward();
    use_in_backward(unit);
  } else if (is_in_forward()) {
    use_in_forward(unit);
  } else {
    TORCH_CHECK_VALUE(
        !is_forward || unit.is_unsharded(),
        "[fsdp] \"",
        unit.parameters()[parameter].name(),
        "\" of unit ",
        unit.name(),
        " is used outside a forward pass of the FullyShardedDataParallel "
        "model: this rank has only its shard. Call the model, or use a "
        "ForwardScope around other methods of its modules.");
  }
}

void Schedule::use_in_forward(Unit& unit) {
  if (&unit == last_used_) {
    gather(unit);
    return;
  }
  auto& state = state_of(unit);
  state.is_left = false;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (std::exchange(states_[i].is_left, false)) {
      units_[i]->reshard(memory_);
    }
  }
  if (last_used_) {
    leave(*last_used_);
  }
  last_used_ = &unit;
  note_order(unit);
  listen_to(unit); // A parameter may have been unfrozen in forward.
  // In a Join nothing is kept, because ranks without inputs cannot keep shards.
  unit.set_keeps_for_backward(
      at::GradMode::is_enabled() && unit.reshards_after_forward() &&
      !observer_ && whole_depth_ == 0);
  gather(unit);
  unit.set_keeps_for_backward(false);
  prefetch_in_forward(unit);
}

// Marks a unit to be resharded later. Its memory is needed until the op that
// uses the next unit has begun.
void Schedule::leave(Unit& unit) {
  auto& state = state_of(unit);
  state.is_left =
      state.calls == 0 && unit.reshards_after_forward() && whole_depth_ == 0;
}

void Schedule::note_order(Unit& unit) {
  auto& state = state_of(unit);
  if (state.order < 0) {
    state.order = std::ssize(order_);
    order_.push_back(&unit);
  }
}

void Schedule::set_forward_prefetch(const Unit& unit, std::vector<Unit*> next) {
  prefetches_[index_of(unit)].forward = std::move(next);
}

void Schedule::set_backward_prefetch(
    const Unit& unit,
    std::vector<Unit*> next) {
  prefetches_[index_of(unit)].backward = std::move(next);
}

void Schedule::set_comm_hook(
    const std::shared_ptr<data_parallel::CommHook>& hook) {
  size_t bucket = 0;
  for (const auto& unit : units_) {
    unit->set_comm_hook(hook, bucket);
    bucket += unit->message_count();
  }
}

void Schedule::prefetch_in_forward(const Unit& unit) {
  if (const auto& listed = prefetches_[index_of(unit)].forward) {
    for (auto* next : *listed) {
      if (state_of(*next).order < 0) {
        start_gather(*next);
      }
    }
    return;
  }
  auto next = std::ranges::find(last_order_, &unit);
  for (int64_t i = 0;
       i < options_.forward_prefetch && next != last_order_.end();
       ++i) {
    ++next;
    if (next != last_order_.end() && state_of(**next).order < 0) {
      start_gather(**next);
    }
  }
}

// Backward.

// If a pass throws, the engine destroys its callbacks before backward()
// returns. When the caller catches the error, .grad() thus holds the gradients
// that arrived before it.
void Schedule::drop_failed_backward(int64_t pass) {
  if (!is_in_backward_ || pass != pass_) {
    return;
  }
  is_in_backward_ = false;
  in_flight_.clear();
  over_replicas_ = nullptr;
  for (const auto& unit : units_) {
    try {
      unit->keep_own_gradients(memory_);
      unit->reshard(memory_);
    } catch (const std::exception&) {
      // A reduction failed, too. The first error is already being thrown.
    }
  }
}

void Schedule::begin_backward() {
  if (is_in_backward_) {
    return;
  }
  is_in_backward_ = true;
  const auto drop = [weak = weak_from_this(), pass = ++pass_](void*) {
    if (const auto alive = weak.lock()) {
      alive->drop_failed_backward(pass);
    }
  };
  const std::shared_ptr<void> token(this, drop);
  is_partial_ = !torch::autograd::get_current_graph_task_exec_info()->empty();
  records_graph_ = at::GradMode::is_enabled();
  last_used_ = nullptr;
  for (const auto& unit : units_) {
    unit->begin_backward();
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [weak = weak_from_this(), token] {
        if (const auto alive = weak.lock()) {
          alive->end_backward();
        }
      });
}

Unit* Schedule::next_in_backward(const Unit& unit) {
  const auto order = state_of(unit).order;
  return order > 0 ? order_[static_cast<size_t>(order - 1)] : nullptr;
}

void Schedule::use_in_backward(Unit& unit) {
  begin_backward();
  gather(unit);
  last_used_ = &unit;
  if (const auto& listed = prefetches_[index_of(unit)].backward) {
    for (auto* next : *listed) {
      if (!next->is_done()) {
        start_gather(*next);
      }
    }
  } else if (options_.backward_prefetch == BackwardPrefetch::kPre) {
    prefetch_in_backward(unit);
  }
}

void Schedule::prefetch_in_backward(const Unit& unit) {
  if (prefetches_[index_of(unit)].backward) {
    return; // The listed units are already being gathered.
  }
  if (auto* next = next_in_backward(unit); next && !next->is_done()) {
    start_gather(*next);
  }
}

void Schedule::before_gradient(Unit& unit, size_t parameter) {
  begin_backward();
  unit.set_gradient_aside(parameter);
}

void Schedule::on_gradient(Unit& unit, size_t parameter) {
  begin_backward();
  const bool reduces = *paused_ == 0;
  if (reduces) {
    unit.take_gradient(parameter, memory_);
  } else {
    unit.cast_own_gradient(parameter);
  }
  if (!unit.count_gradient(parameter)) {
    return;
  }
  if (reduces) {
    reduce(unit);
  }
  // Frozen parameters may be needed for gradients of inputs. See
  // reshard_done().
  if (!unit.has_frozen()) {
    if (last_used_ == &unit) {
      last_used_ = nullptr;
    }
    reshard_after_backward(unit);
  }
  if (options_.backward_prefetch != BackwardPrefetch::kNone) {
    prefetch_in_backward(unit);
  }
}

// Called when backward reaches the output of `current`: it has passed the units
// that forward used later.
void Schedule::reshard_done(const Unit& current) {
  const auto order = state_of(current).order;
  for (const auto& unit : units_) {
    if (unit.get() != &current && unit.get() != outermost_ &&
        unit->is_unsharded() && unit->awaits_nothing() &&
        state_of(*unit).order > order) {
      reshard_after_backward(*unit);
    }
  }
}

// With create_graph, a backward of the gradients reads rows that this backward
// saved, without calling the hooks. So the rows stay until that backward ends.
void Schedule::reshard_after_backward(Unit& unit) {
  if (!records_graph_) {
    unit.reshard(memory_);
  }
}

void Schedule::reduce(Unit& unit) {
  if (observer_) {
    observer_->before_reduce(index_of(unit), !skips_all_reduce());
  }
  start_reduce(unit);
}

void Schedule::start_reduce(Unit& unit) {
  finish_reductions(
      static_cast<size_t>(std::max<int64_t>(options_.reduce_in_flight - 1, 0)));
  unit.start_reduce(memory_);
  in_flight_.push_back(&unit);
  if (options_.reduce_in_flight == 0) {
    finish_reductions(0);
    finish_over_replicas();
  }
}

void Schedule::finish_reductions(size_t left) {
  while (in_flight_.size() > left) {
    auto* unit = in_flight_.front();
    in_flight_.pop_front();
    finish_over_replicas();
    if (skips_all_reduce()) {
      unit->skip_reduce_over_replicas(memory_);
      unit->finish_reduce(memory_);
    } else if (unit->start_reduce_over_replicas(memory_)) {
      over_replicas_ = unit;
    } else {
      unit->finish_reduce(memory_);
    }
  }
}

// The sum of a unit over the replicas runs while the next unit computes.
void Schedule::finish_over_replicas() {
  if (auto* unit = std::exchange(over_replicas_, nullptr)) {
    unit->finish_reduce(memory_);
  }
}

// If no gradient of a unit arrived, the pass computed gradients of other
// tensors (autograd::grad()) and reduces nothing.
void Schedule::end_backward() {
  const bool has_none =
      is_partial_ && std::ranges::none_of(units_, [](const auto& unit) {
        return unit->has_gradients();
      });
  const bool reduces = *paused_ == 0 && !has_none;
  if (reduces) {
    for (const auto& unit : units_) {
      if (unit->is_trained() && !unit->is_reduced()) {
        reduce(*unit);
      }
    }
  }
  if (observer_) { // Following ranks then start their last sums over replicas.
    observer_->end_backward(reduces && !skips_all_reduce());
  }
  finish_reductions(0);
  finish_over_replicas();
  last_used_ = nullptr;
  for (const auto& unit : units_) {
    if (reduces) {
      unit->set_gradients();
    } else {
      unit->keep_own_gradients(memory_);
    }
    reshard_after_backward(*unit);
    unit->drop_kept(memory_);
  }
  is_in_backward_ = false;
}

// Collectives that other ranks announced.

void Schedule::follow_gather(size_t unit) {
  units_[unit]->drop_kept(memory_); // The other ranks kept nothing.
  units_[unit]->start_unshard(memory_);
  units_[unit]->reshard(memory_);
}

void Schedule::follow_reduce(size_t unit, bool over_replicas) {
  if (!std::exchange(is_following_, true)) {
    for (const auto& each : units_) {
      listen_to(*each); // This rank may have had no forward.
      each->begin_backward();
    }
  }
  follows_without_all_reduce_ = !over_replicas;
  start_reduce(*units_[unit]);
}

void Schedule::follow_end_of_backward() {
  if (!std::exchange(is_following_, false)) {
    return;
  }
  finish_reductions(0);
  finish_over_replicas();
  for (const auto& unit : units_) {
    unit->set_gradients();
  }
  follows_without_all_reduce_ = false;
}

void Schedule::set_contributors(int64_t ranks) {
  for (const auto& unit : units_) {
    unit->set_contributors(ranks);
  }
}

// Calls of the user outside of forward and backward.

void Schedule::unshard(Unit& unit) {
  listen_to(unit);
  if (!is_active() && !unit.is_gathered_soon()) {
    unit.drop_kept(memory_); // The parameters may have changed.
  }
  gather(unit);
}

void Schedule::reshard(Unit& unit) {
  if (last_used_ == &unit) {
    last_used_ = nullptr;
  }
  unit.reshard(memory_);
}

void Schedule::begin_whole() {
  TORCH_CHECK_VALUE(
      !is_in_forward() && !is_in_backward_,
      "[fsdp] FullParameters cannot be used during a forward or backward pass. "
      "Use it before or after.");
  TORCH_CHECK_VALUE(
      observer_ == nullptr,
      "[fsdp] FullParameters cannot be used inside a Join, because ranks "
      "without inputs do not take part. Use it before or after.");
  for (const auto& unit : units_) {
    unit->drop_kept(memory_);
    unit->unshard_in_full_precision(memory_);
  }
  ++whole_depth_;
}

void Schedule::end_whole(bool write_back) {
  if (write_back) {
    for (const auto& unit : units_) {
      if (unit->is_unsharded()) {
        unit->write_back();
      }
    }
  }
  if (--whole_depth_ == 0) {
    reshard_all();
  }
}

void Schedule::reshard_all() {
  if (is_in_forward() || is_in_backward_ || whole_depth_ > 0) {
    return;
  }
  for (const auto& unit : units_) {
    unit->reshard(memory_);
  }
}

} // namespace weft::fsdp
