#include "ddp/ddp_join.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include "data_parallel/replicas/replicas.h"
#include "mesh/error/error.h"

// Note [Shadowing ranks]
// ~~~~~~~~~~~~~~~~~~~~~~
// An iteration begins with a rank's first forward after a reduction and ends
// with the next reduction, however many micro-batches are accumulated between.
// If forward does not communicate, a rank without inputs (a shadow) takes part
// in the reduction only: its buckets hold zeros, or the gradients that it
// accumulated before it ran out of inputs. Buffer synchronization, the search
// for unused parameters and the exchange of batch norm statistics happen as
// often as the ranks with inputs need them. These ranks announce each of them,
// and the reduction, by an event: a small all_reduce to which shadows
// contribute 0.
//
// Shadows publish the reduced gradients like all ranks, so that optimizers that
// shard their state over the replicas step there too. In the end all ranks
// receive the parameters and buffers of the rank that completed the most
// iterations with inputs of its own (the first of several). Parameters with a
// group of their own come from such a rank of that group.

namespace weft::ddp {
namespace {

constexpr int64_t kBuffersBeforeForward = 1;
constexpr int64_t kBuffersAfterForward = 2;
constexpr int64_t kReach = 4;
constexpr int64_t kStatistics = 8;
constexpr int64_t kBackward = 16;

} // namespace

DdpJoin::DdpJoin(
    DistributedDataParallelBase& ddp,
    State& state,
    data_parallel::Join& join,
    const data_parallel::JoinKwargs& kwargs)
    : ddp_(ddp), state_(state), join_(join), device_(state.device()) {
  const bool by_initial =
      data_parallel::read_bool(kwargs, "divide_by_initial_world_size", true);
  const bool by_samples =
      data_parallel::read_bool(kwargs, "weight_by_samples", false);
  WEFT_CHECK(
      !by_samples || state.options.reduce_op == mesh::ReduceOp::kAvg,
      "join",
      state.where(),
      "weight_by_samples cannot be combined with reduce_op = kSum, which "
      "expects a loss that is already divided by the global count. Leave one "
      "of them out.");
  if (by_samples) {
    division_ = Division::kBySamples;
  } else if (!by_initial && state.options.reduce_op == mesh::ReduceOp::kAvg) {
    division_ = Division::kEffective;
  }
  has_buffers_ = state.has_synced_buffers();
  channels_ = sync_batch_norm_groups(*state.module);
  set_announcing(true);
}

DdpJoin::~DdpJoin() {
  set_announcing(false);
}

mesh::Communicator& DdpJoin::replicas() const {
  return state_.dp.group(int64_t{0});
}

bool DdpJoin::has_events() const {
  return has_buffers_ || !channels_.empty() ||
         finds_unused_in_each_step(state_.options);
}

void DdpJoin::set_announcing(bool announces) {
  for (const auto& channel : channels_) {
    channel->set_announcing(announces);
  }
}

void DdpJoin::begin_forward(std::optional<int64_t> samples) {
  if (!at::GradMode::is_enabled()) {
    WEFT_CHECK(
        channels_.empty() || !state_.module->is_training(),
        "join",
        state_.where(),
        "a forward in training mode under no_grad would exchange batch norm "
        "statistics, which ranks without inputs do not expect. Call eval() "
        "before it.");
    return;
  }
  WEFT_CHECK(
      samples || division_ != Division::kBySamples,
      "join",
      state_.where(),
      "weight_by_samples counts the rows of forward()'s first tensor, but no "
      "argument is a tensor. Pass the inputs as tensors.");
  join_.check_model_parallel_mesh();
  if (!is_open_) {
    data_parallel::Join::notify_join_context_async(ddp_);
    is_open_ = true;
    samples_ = 0;
  }
  samples_ += samples.value_or(0);
  if (!state_.reducer) {
    // All ranks are about to synchronize the parameters.
    join_.active_ranks();
  }
}

void DdpJoin::send_event(int64_t event) {
  const auto& group = replicas();
  const int64_t from_first = event != 0 ? group.size() - group.rank() : 0;
  join_.active_ranks();
  event_ = at::tensor({event, from_first}, at::kLong).to(device_);
  event_work_ =
      replicas().all_reduce(event_, mesh::ReduceOp::kMax, "join event");
}

// Returns the event and the first of the replicas that sent it.
std::pair<int64_t, int64_t> DdpJoin::read_event() {
  std::exchange(event_work_, std::nullopt)->wait();
  if (event_.is_meta()) {
    return {0, 0};
  }
  const auto values = event_.cpu();
  return {
      values[0].item<int64_t>(), replicas().size() - values[1].item<int64_t>()};
}

int64_t DdpJoin::before_buffers(BufferCommHookLocation location) {
  if (!has_events() || !is_open_) {
    return 0;
  }
  send_event(
      location == BufferCommHookLocation::PRE_FORWARD ? kBuffersBeforeForward
                                                      : kBuffersAfterForward);
  return read_event().second;
}

void DdpJoin::before_module() {
  if (!channels_.empty() && is_open_ && at::GradMode::is_enabled() &&
      state_.module->is_training()) {
    send_event(kStatistics);
    is_in_statistics_ = true;
  }
}

void DdpJoin::end_statistics() {
  if (std::exchange(is_in_statistics_, false)) {
    for (const auto& channel : channels_) {
      channel->end_pass();
    }
  }
}

// Announces the backward of batch norm, which exchanges gradients even under
// no_sync(), where no reduction announces it.
void DdpJoin::end_forward(const std::vector<at::Tensor>& outputs) {
  end_statistics();
  if (channels_.empty() || !is_open_) {
    return;
  }
  const std::weak_ptr<DdpJoin> weak = weak_from_this();
  for (const auto& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      output.register_hook([weak](const at::Tensor&) {
        if (const auto self = weak.lock()) {
          self->begin_paused_backward();
        }
      });
    }
  }
}

void DdpJoin::begin_paused_backward() {
  if (*state_.paused == 0 || is_in_statistics_) {
    return;
  }
  send_event(kStatistics);
  is_in_statistics_ = true;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this()] { self->end_statistics(); });
}

void DdpJoin::before_reachable() {
  send_event(kReach);
}

void DdpJoin::begin() {
  if (!is_open_) {
    // This is a second backward through the same graph.
    data_parallel::Join::notify_join_context_async(ddp_);
    is_open_ = true;
  }
  if (has_events()) {
    send_event(kBackward);
    is_in_statistics_ = !channels_.empty();
  }
  send_weights();
}

void DdpJoin::confirm() {
  join_.active_ranks();
}

double DdpJoin::own_weight() const {
  if (division_ == Division::kBySamples) {
    return static_cast<double>(samples_);
  }
  return is_open_ ? 1 : 0;
}

void DdpJoin::send_weights() {
  weights_.clear();
  weight_works_.clear();
  for (size_t i = 0; i < state_.groups.size(); ++i) {
    weights_.emplace_back();
    weight_works_.emplace_back();
    // In group 0 the number of replicas with inputs is known from the join
    // header.
    if (division_ == Division::kBySamples ||
        (division_ == Division::kEffective && i > 0)) {
      join_.active_ranks();
      weights_[i] = at::full({1}, own_weight(), at::kDouble).to(device_);
      auto group = state_.groups[i].group;
      weight_works_[i] =
          group.all_reduce(weights_[i], mesh::ReduceOp::kSum, "join weights");
    }
  }
}

double DdpJoin::total_weight(size_t group) {
  if (!weights_.at(group).defined()) {
    return static_cast<double>(join_.active_ranks());
  }
  if (weight_works_[group]) {
    std::exchange(weight_works_[group], std::nullopt)->wait();
  }
  return weights_[group].is_meta() ? 1.0 : weights_[group].item<double>();
}

double DdpJoin::divisor(size_t group, double initial) {
  if (division_ == Division::kInitial) {
    return initial;
  }
  const double own = own_weight();
  if (own == 0) {
    return std::numeric_limits<double>::infinity();
  }
  const auto size = static_cast<double>(state_.groups[group].group.size());
  return initial / size * total_weight(group) / own;
}

void DdpJoin::gradients_done() {
  end_statistics();
}

void DdpJoin::end(bool is_completed, bool has_agreed_error) {
  is_in_statistics_ = false;
  has_agreed_error_ = has_agreed_error;
  trained_ += is_completed ? 1 : 0;
  // After an error of this rank alone, the other ranks are still in the
  // iteration.
  is_open_ = !is_completed && !has_agreed_error && !state_.reducer->is_shadow();
  samples_ = 0;
}

void DdpJoin::shadow_statistics() {
  for (const auto& channel : channels_) {
    channel->shadow_pass();
  }
}

// Takes part in events until the reduction. Returns false if no rank with
// inputs is left to reduce.
bool DdpJoin::shadow_forward() {
  for (;;) {
    send_event(0);
    const auto [event, root] = read_event();
    switch (event) {
      case kBuffersBeforeForward:
      case kBuffersAfterForward:
        state_.sync_buffers(root);
        break;
      case kReach:
        state_.reducer->shadow_reachable();
        break;
      case kStatistics:
        shadow_statistics();
        break;
      default:
        return event == kBackward;
    }
  }
}

void DdpJoin::main_hook() {
  has_shadowed_ = true;
  if (!state_.reducer) {
    ddp_.synchronize_parameters();
  }
  if (has_events() && !shadow_forward()) {
    is_open_ = false;
    return;
  }
  send_weights();
  state_.reducer->shadow_backward([this] { shadow_statistics(); });
}

const std::vector<int64_t>& DdpJoin::roots() {
  if (!roots_.empty()) {
    return roots_;
  }
  for (const auto& item : state_.groups) {
    auto group = item.group;
    const auto key =
        at::full(
            {1},
            trained_ * group.size() + group.size() - 1 - group.rank(),
            at::kLong)
            .to(device_);
    group.all_reduce(key, mesh::ReduceOp::kMax, "join last trained").wait();
    roots_.push_back(
        key.is_meta() ? 0
                      : group.size() - 1 - key.item<int64_t>() % group.size());
  }
  return roots_;
}

void DdpJoin::post_hook(bool) {
  if (!state_.reducer) {
    return;
  }
  const auto& from = roots();
  const auto selection =
      select_parameters(*state_.module, state_.dp, state_.options);
  const bool sends_buffers = has_buffers_ || !channels_.empty();
  const auto by_group = values_by_group(
      selection,
      sends_buffers ? selection.buffers
                    : std::vector<data_parallel::NamedTensor>());
  for (size_t i = 0; i < by_group.size(); ++i) {
    auto group = state_.groups[i].group;
    data_parallel::broadcast_from(
        from[i], by_group[i], group, "join last values");
  }
}

void DdpJoin::share_optimizer_state(torch::optim::Optimizer& optimizer) {
  if (!state_.reducer) {
    return;
  }
  const auto selection =
      select_parameters(*state_.module, state_.dp, state_.options);
  const auto parameters = values_by_group(selection, {});
  const auto state = ddp_.optimizer_state_dict(optimizer);
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::vector<data_parallel::NamedTensor> tensors;
    for (const auto& [key, value] : state) {
      const bool is_of_group = std::any_of(
          parameters[i].begin(), parameters[i].end(), [&](const auto& item) {
            return key.starts_with("state." + item.name + ".") ||
                   key.starts_with("param_groups." + item.name + ".");
          });
      if (is_of_group) {
        tensors.push_back({key, value});
      }
    }
    auto group = state_.groups[i].group;
    data_parallel::broadcast_from(
        roots()[i], tensors, group, "join optimizer state");
  }
  ddp_.load_optimizer_state_dict(optimizer, state);
}

} // namespace weft::ddp
