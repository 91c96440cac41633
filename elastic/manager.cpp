#include "elastic/manager.h"

#include <algorithm>
#include <string>

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtensor/nn/optimizer_state.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "lighthouse/clock.h"
#include "lighthouse/lighthouse.h"
#include "mesh/communicator/exchange.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"

// Note [Ranks of a group]
// ~~~~~~~~~~~~~~~~~~~~~~~
// To the lighthouse a group is one member, for which its rank 0 speaks: the
// leader. The ranks of a group take each decision together: whatever may differ
// between them (did this rank meet its peers of the other groups, are its
// gradients complete) they put to a vote, and what the leader alone knows
// (which epoch comes, whether a step is committed) it tells them, over the
// group's own world. So:
//  - Collectives inside a group always come to their end: the failure of one
//    among the groups is kept for the vote.
//  - A group is prepared for a step when all its ranks have voted for it. Then
//    the leaders of the groups tell each other; when that is over, all ranks of
//    all groups have complete gradients.
//  - The lighthouse's news reach every rank, so that each aborts its own
//    collectives at once.
//  - If a rank is lost, the group's world fails on the others, and weftrun ends
//    them.

namespace weft::elastic {
namespace {

using mesh::CommError;
using mesh::throw_error;
using Phase = Member::Phase;

/// A quarter of the time after which a group without a report is suspected.
constexpr Time kHeartbeat = LighthouseOptions().suspect / 4;

mesh::World checked(mesh::World world) {
  if (world.device().is_cuda()) {
    throw_error<mesh::UsageError>(
        "[elastic] replica groups on CUDA devices are not supported yet. "
        "Create the world for the CPU");
  }
  return world;
}

/// The mesh to which the state of a module and its optimizer belongs: that of
/// its DTensors, else one of all ranks.
mesh::DeviceMesh mesh_of(
    const torch::nn::Module& module,
    const mesh::World& world) {
  for (const auto& parameter : module.parameters()) {
    if (const auto* impl = dtensor::dtensor_impl(parameter)) {
      return impl->spec().mesh().root();
    }
  }
  return mesh::DeviceMesh::create(world, {world.world_size()}, {"ranks"});
}

/// Throws: c10::ValueError naming a layer whose forward changes its buffers.
void check_buffers(const torch::nn::Module& module) {
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    const auto buffers = item.value()->named_buffers(/*recurse=*/false);
    const auto* mean = buffers.find("running_mean");
    WEFT_CHECK(
        mean == nullptr || !mean->defined() || !item.value()->is_training(),
        "elastic",
        mesh::ErrorContext(),
        item.key().empty() ? "the module" : "\"" + item.key() + "\"",
        " has running statistics of the samples of its own group, so that the "
        "states of the groups would differ. Set track_running_stats to false, "
        "use LayerNorm or GroupNorm, or call eval() on it before.");
  }
}

/// The error of a decision that failed in the vote.
std::exception_ptr error_of_another_rank() {
  try {
    throw_error<CommError>(
        "[elastic] a collective with the other groups failed on another rank "
        "of this group, which has written why");
  } catch (...) {
    return std::current_exception();
  }
}

} // namespace

std::pair<int64_t, int64_t> Step::share(int64_t count) const {
  WEFT_CHECK(
      count >= groups_,
      "elastic",
      mesh::ErrorContext(),
      "samples of the step >= replica groups: ",
      count,
      " vs ",
      groups_,
      ". A group without a sample computes no gradients to add. Give the step "
      "more samples, or start fewer groups.");
  const int64_t part = counts() ? group_ : 0;
  return {count * part / groups_, count * (part + 1) / groups_};
}

void Step::wait_for_transfer() {
  manager_.wait_for_transfer();
}

bool Step::commit() {
  WEFT_CHECK(
      !is_over_,
      "elastic",
      mesh::ErrorContext(),
      "Step ",
      number_,
      " was committed twice. Call begin_step() for the next one.");
  is_over_ = true;
  return manager_.commit_step();
}

Manager::Manager(mesh::World world, ManagerOptions options)
    : Manager(
          std::move(world),
          LighthouseLink::from_env(),
          std::move(options)) {}

Manager::Manager(
    mesh::World world,
    std::shared_ptr<LighthouseLink> link,
    ManagerOptions options)
    : world_(checked(std::move(world))),
      link_(std::move(link)),
      options_(std::move(options)),
      member_(link_->group().id, LighthouseOptions().lease, now()),
      step_(options_.step),
      quorum_(link_) {
  link_->listen([this](const Reply& reply) { follow(reply); });
}

Manager::~Manager() {
  link_->listen({});
  if (!leads()) {
    return;
  }
  {
    const Lock lock(mutex_);
    if (std::uncaught_exceptions() == 0 && !has_left_for_good_) {
      member_.finish();
      report(lock);
    }
    is_over_ = true;
    changed_.notify_all();
  }
  if (heart_.joinable()) {
    heart_.join();
  }
}

void Manager::register_state(
    std::string name,
    SharedState::Get get,
    SharedState::Load load) {
  state_.add(std::move(name), std::move(get), std::move(load));
}

void Manager::register_text(std::string name, std::string text) {
  state_.add_text(std::move(name), std::move(text));
}

void Manager::register_module(
    std::string name,
    std::shared_ptr<torch::nn::Module> module) {
  check_buffers(*module);
  const auto mesh = mesh_of(*module, world_);
  register_state(std::move(name), [module = std::move(module), mesh] {
    return dtensor::module_state_dict(*module, mesh);
  });
}

void Manager::register_optimizer(
    std::string name,
    torch::optim::Optimizer& optimizer,
    const std::shared_ptr<torch::nn::Module>& module) {
  const auto mesh = mesh_of(*module, world_);
  register_state(
      std::move(name),
      [&optimizer, module, mesh] {
        return dtensor::optimizer_state_dict(optimizer, *module, mesh);
      },
      [&optimizer, module](const dtensor::StateDict& state) {
        dtensor::load_optimizer_state_dict(optimizer, *module, state);
      });
}

int64_t Manager::step() const {
  const std::lock_guard lock(mutex_);
  return step_;
}

bool Manager::is_run_ending() const {
  return link_->store()->check({kRunEndsKey});
}

int64_t Manager::epochs() const {
  const std::lock_guard lock(mutex_);
  return epochs_;
}

// The other threads: what the lighthouse says, and the heartbeat.

void Manager::follow(const Reply& reply) {
  const Lock lock(mutex_);
  if (leads()) {
    const auto epoch = member_.epoch().number;
    const auto phase = member_.phase();
    const auto ballot = member_.ballot();
    member_.receive(reply, now());
    if (member_.phase() != phase || member_.epoch().number != epoch ||
        member_.ballot() != ballot) {
      report(lock);
    }
  } else if (reply.directive == Directive::kEnter) {
    announced_ = std::max(announced_, reply.epoch.number);
  } else if (reply.directive == Directive::kLeave) {
    ended_ = std::max(ended_, reply.epoch.number);
  }
  if (epoch_world_ && has_ended(met_)) {
    epoch_world_->abort();
    note_end(lock);
  }
  changed_.notify_all();
}

/// Whether this group is to leave an epoch, or has left it.
bool Manager::has_ended(const EpochNumber& epoch) const {
  return leads() ? member_.phase() == Phase::kOutside ||
                       member_.epoch().number != epoch
                 : announced_ > epoch || ended_ >= epoch;
}

void Manager::beat() {
  pthread_setname_np(pthread_self(), "weft_heartbeat");
  Lock lock(mutex_);
  while (!is_over_) {
    report(lock);
    changed_.wait_for(lock, kHeartbeat, [&] { return is_over_; });
  }
}

void Manager::report(const Lock& /*lock*/) {
  try {
    auto report = member_.report(now());
    report.has_left_for_good = has_left_for_good_;
    report.min_groups = options_.min_groups;
    report.join_timeout = options_.join_timeout;
    report.is_stopping =
        options_.is_asked_to_stop && options_.is_asked_to_stop();
    link_->send(report);
  } catch (const CommError&) {
    link_error_ = std::current_exception();
    changed_.notify_all();
  }
}

void Manager::note_end(const Lock& /*lock*/) {
  left_ = left_ == Time{0} ? elastic::now() : left_;
}

void Manager::leave(Lock& lock) {
  note_end(lock);
  if (leads()) {
    member_.leave();
  }
  if (epoch_world_) {
    epoch_world_->abort();
    epoch_world_.reset();
  }
  if (leads()) {
    report(lock);
  }
}

// The ranks of a group.

/// Whether something holds on all ranks of the group.
bool Manager::is_on_all_ranks(bool holds) {
  if (world_.world_size() == 1) {
    return holds;
  }
  auto count = at::full({1}, holds ? 1 : 0, at::kLong);
  world_.group().all_reduce(count, mesh::ReduceOp::kSum, "vote").wait();
  return count.item<int64_t>() == world_.world_size();
}

/// Returns the leader's values on all ranks of the group.
std::vector<int64_t> Manager::from_leader(std::vector<int64_t> values) {
  if (world_.world_size() == 1) {
    return values;
  }
  auto tensor = at::tensor(values, at::kLong);
  world_.group().broadcast(tensor, 0, "decision").wait();
  const auto* data = tensor.const_data_ptr<int64_t>();
  return {data, data + tensor.numel()};
}

// The calling thread.

/// Leaves the epoch that was entered, unless a newer one is to be entered.
void Manager::leave_entered_epoch() {
  Lock lock(mutex_);
  if (!leads() || member_.epoch().number == entered_.number) {
    leave(lock);
  } else {
    epoch_world_.reset();
  }
  lock.unlock();
  transfer_.reset();
  group_.reset();
}

/// From now on the other groups wait for this one.
void Manager::begin() {
  is_begun_ = true;
  if (link_->group().is_restarted) {
    buffers_ = StateTransfer::make_buffers(state_);
  }
  if (leads()) {
    heart_ = std::thread([this] { beat(); });
  }
}

Step Manager::begin_step() {
  if (!is_begun_) {
    begin();
  }
  step_error_ = nullptr;
  leaves_after_step_ = false;
  while (true) {
    if (!group_) {
      enter_next_epoch();
    }
    if ((is_ready_ || compare_states()) && !is_known_to_fail()) {
      if (!are_too_few()) {
        quorum_.begin_step(step());
        return Step(*this, step(), counting_groups_, position_);
      }
      end_with_too_few();
    }
    leave_entered_epoch();
  }
}

/// Whether the step would fail, as far as a group of one rank knows without a
/// message. Several ranks find it in the vote.
bool Manager::is_known_to_fail() const {
  const std::lock_guard lock(mutex_);
  return world_.world_size() == 1 && has_ended(entered_.number);
}

void Manager::all_reduce(const at::Tensor& tensor, std::string_view name) {
  start_all_reduce(tensor, name)();
}

std::function<void()> Manager::start_all_reduce(
    const at::Tensor& tensor,
    std::string_view name) {
  if (position_ >= counting_groups_) {
    const at::NoGradGuard no_grad;
    tensor.zero_();
  }
  // Also a failed one keeps the tensor until nothing writes to it any more.
  std::optional<mesh::Work> work;
  if (!step_error_) {
    keep_failure(
        [&] { work = group_->all_reduce(tensor, mesh::ReduceOp::kSum, name); });
  }
  return [this, work = std::move(work)]() mutable {
    keep_failure([&] {
      if (work) {
        work->wait();
      }
    });
  };
}

/// Runs a part of a collective of the step, unless one has failed.
void Manager::keep_failure(const std::function<void()>& run) {
  if (!group_) {
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    run();
  } catch (const CommError&) {
    step_error_ = step_error_ ? step_error_ : std::current_exception();
  }
  blocked_ns_ +=
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start)
          .count();
}

// See Note [One lineage] in lighthouse/messages.h.
bool Manager::commit_step() {
  if (is_committed()) {
    failures_ = 0;
    return true;
  }
  if (step_error_) {
    count_failure(step_error_);
  }
  leave_entered_epoch();
  const int64_t step = this->step();
  const bool applies = enter_next_epoch();
  if (applies) {
    quorum_.commit(step);
  }
  return applies;
}

/// Prepares the step and applies it if all groups are prepared.
bool Manager::is_committed() {
  wait_for_transfer();
  if (!is_on_all_ranks(!step_error_)) {
    step_error_ = step_error_ ? step_error_ : error_of_another_rank();
    return false;
  }
  bool commits = false;
  bool leaves = false;
  bool takes_state = false;
  if (leads()) {
    Lock lock(mutex_);
    if (member_.phase() == Phase::kWithoutState) {
      member_.take_state();
      takes_state = true;
    }
    if (member_.phase() == Phase::kTraining) {
      leaves = member_.leaves_after_step() || leaves_after_step_;
      member_.prepare();
      lock.unlock();
      auto ready = at::full({1}, leaves ? 1 : 0, at::kLong);
      keep_failure([&] {
        group_->all_reduce(ready, mesh::ReduceOp::kSum, "ready").wait();
      });
      lock.lock();
      commits = !step_error_ && member_.commit(now());
      leaves = commits && ready.item<int64_t>() > 0;
    }
  }
  const auto decision =
      from_leader({commits ? 1 : 0, leaves ? 1 : 0, takes_state ? 1 : 0});
  if (decision[2] != 0) {
    take_state();
  }
  if (decision[0] == 0) {
    return false;
  }
  quorum_.commit(step());
  counting_groups_ = group_->size();
  position_ = group_->rank();
  transfer_.reset();
  Lock lock(mutex_);
  ++step_;
  if (decision[1] != 0) { // All leave, to let others in, or one go.
    has_left_for_good_ = leaves_after_step_;
    leave(lock);
    lock.unlock();
    group_.reset();
  }
  return true;
}

/// Throws the error if the same groups have failed three times in a row: no
/// loss of a group explains it. The leader counts for all ranks of its group.
void Manager::count_failure(const std::exception_ptr& error) {
  constexpr int64_t kMost = 3;
  failures_ = entered_.members == failed_groups_ ? failures_ + 1 : 1;
  failed_groups_ = entered_.members;
  if (leads() && failures_ >= kMost) {
    std::rethrow_exception(error);
  }
}

/// Enters the next epoch that comes about. Returns true if it begins after the
/// step that this group is prepared for.
bool Manager::enter_next_epoch() {
  while (true) {
    const auto place = next_place();
    if (!place) {
      continue;
    }
    const auto entry = try_to_enter(*place);
    if (entry.is_entered) {
      has_state_ = entry.has_state;
      is_ready_ = false;
      const std::lock_guard lock(mutex_);
      ++epochs_;
      step_ = entry.has_state ? entry.step : step_;
      return entry.applies;
    }
  }
}

/// Waits for the next epoch, on the other ranks for a second at most: they wait
/// in a collective.
std::optional<Manager::Place> Manager::next_place() {
  constexpr std::chrono::seconds kPatience(1);
  Place place;
  bool comes = false;
  if (leads()) {
    Lock lock(mutex_);
    comes = changed_.wait_for(lock, kPatience, [&] {
      return link_error_ || member_.phase() == Phase::kMeeting;
    });
    if (link_error_) {
      std::rethrow_exception(link_error_);
    }
    if (comes) {
      entered_ = member_.epoch();
      const auto& members = entered_.members;
      place = {
          .number = entered_.number,
          .rank =
              std::ranges::find(members, link_->group().id) - members.begin(),
          .groups = std::ssize(members)};
    }
  }
  const auto told = from_leader(
      {comes ? 1 : 0,
       static_cast<int64_t>(place.number.ballot),
       static_cast<int64_t>(place.number.count),
       place.rank,
       place.groups});
  if (told[0] == 0) {
    return std::nullopt;
  }
  entered_.number = {
      .ballot = static_cast<uint64_t>(told[1]),
      .count = static_cast<uint64_t>(told[2])};
  return Place{.number = entered_.number, .rank = told[3], .groups = told[4]};
}

/// Meets the other groups of an epoch and enters it.
Manager::Entry Manager::try_to_enter(const Place& place) {
  std::exception_ptr error;
  try {
    meet(place);
  } catch (const CommError&) {
    error = std::current_exception();
  }
  if (!is_on_all_ranks(!error)) {
    group_.reset();
    Lock lock(mutex_);
    const bool is_own = !has_ended(place.number);
    if (!leads() || member_.epoch().number == place.number) {
      leave(lock);
    }
    lock.unlock();
    if (is_own) { // Nobody has ended the meeting.
      count_failure(error ? error : error_of_another_rank());
    }
    return {};
  }
  Entry entry;
  if (leads()) {
    const std::lock_guard lock(mutex_);
    entry.is_entered = member_.epoch().number == place.number &&
                       member_.phase() == Phase::kMeeting &&
                       member_.enter(now(), entry.applies);
    entry.has_state = member_.phase() == Phase::kTraining;
    entry.step = member_.applied().step;
  }
  const auto told = from_leader(
      {entry.is_entered ? 1 : 0,
       entry.applies ? 1 : 0,
       entry.has_state ? 1 : 0,
       entry.step});
  Lock lock(mutex_);
  if (told[0] == 0) {
    epoch_world_.reset();
    lock.unlock();
    group_.reset();
    return {};
  }
  if (leads()) {
    report(lock);
  }
  return {
      .is_entered = true,
      .applies = told[1] != 0,
      .has_state = told[2] != 0,
      .step = told[3]};
}

/// Connects this rank with its peers in the groups of an epoch.
void Manager::meet(const Place& place) {
  const auto world = world_.scoped(
      c10::make_intrusive<c10d::PrefixStore>(
          key_prefix(place.number) + std::to_string(world_.rank()),
          link_->store()),
      place.rank,
      place.groups,
      options_.timeout);
  {
    const std::lock_guard lock(mutex_);
    epoch_world_ = world;
    met_ = place.number;
    if (has_ended(place.number) ||
        (leads() && member_.phase() != Phase::kMeeting)) {
      world.abort();
    }
  }
  group_ = world.group();
}

/// Compares what the groups have registered, and starts to give the state to
/// those that came without it. Returns whether this group can begin a step.
bool Manager::compare_states() {
  std::exception_ptr error;
  int64_t with_state = 0;
  int64_t start = 0;
  try {
    const auto all = mesh::gather_numbers(
        *group_,
        {int64_t{has_state_}, link_->group().number, options_.step},
        at::kCPU,
        "state");
    const auto have_state = all.select(1, 0);
    with_state = have_state.sum().item<int64_t>();
    // Without any, all begin from the newest checkpoint that one has loaded.
    const auto source = (with_state > 0 ? have_state : all.select(1, 2))
                            .argmax()
                            .item<int64_t>();
    state_.check_alike(*group_, source);
    record_quorum(all.select(1, 1).contiguous());
    counting_groups_ = group_->size();
    position_ = group_->rank();
    if (with_state < group_->size() && !are_too_few()) {
      auto number =
          at::full({1}, has_state_ ? step() : options_.step, at::kLong);
      group_->broadcast(number, source, "step").wait();
      start = number.item<int64_t>();
      start_transfer(source, have_state);
    }
    if (with_state == 0 && transfer_) {
      transfer_->wait();
    } else if (with_state > 0) {
      counting_groups_ = with_state;
      position_ =
          has_state_
              ? have_state.slice(0, 0, group_->rank()).sum().item<int64_t>()
              : with_state;
    }
  } catch (const CommError&) { // Most often, a group was lost meanwhile.
    error = std::current_exception();
  }
  const bool has_arrived = is_on_all_ranks(!error);
  bool goes_on = false;
  if (leads() && has_arrived) {
    const std::lock_guard lock(mutex_);
    goes_on = !has_ended(entered_.number);
    if (goes_on && with_state == 0 && !are_too_few()) {
      member_.take_state(start);
    }
  }
  if (from_leader({goes_on ? 1 : 0})[0] == 0) {
    if (!has_arrived) {
      count_failure(error ? error : error_of_another_rank());
    }
    return false;
  }
  if (!are_too_few()) {
    if (!has_state_) {
      const std::lock_guard lock(mutex_);
      step_ = start;
    }
    if (with_state == 0) {
      take_state();
    }
  }
  is_ready_ = true;
  return true;
}

bool Manager::are_too_few() const {
  return group_->size() < options_.min_groups;
}

/// The groups have waited for others. They end together, so that none begins
/// again before the state is saved. Returns if the group that saves is lost.
void Manager::end_with_too_few() {
  const bool saves = has_state_ && position_ == 0 && options_.save;
  if (saves) {
    options_.save();
  }
  bool is_saved = true;
  try {
    group_->barrier("end");
  } catch (const CommError&) {
    is_saved = saves || !has_state_;
  }
  if (!is_on_all_ranks(is_saved)) {
    return;
  }
  throw_error<TooFewGroupsError>(mesh::detail::concat(
      "[elastic] replica groups >= min_groups: ",
      group_->size(),
      " vs ",
      options_.min_groups,
      ". The groups that are left have waited for others and end after step ",
      step()));
}

/// `numbers` are those of the replica groups, in the order of ranks.
void Manager::record_quorum(const at::Tensor& numbers) {
  Time left;
  {
    const std::lock_guard lock(mutex_);
    left = std::exchange(left_, Time{0});
  }
  if (leads()) {
    const auto* data = numbers.const_data_ptr<int64_t>();
    quorum_.enter(
        entered_, {data, data + numbers.numel()}, left, elastic::now());
  }
}

/// Connects the groups without state with the one that sends it.
void Manager::start_transfer(int64_t source, const at::Tensor& have_state) {
  std::vector<int64_t> ranks = {source};
  for (int64_t rank = 0; rank < have_state.numel(); ++rank) {
    if (rank != source && have_state[rank].item<int64_t>() == 0) {
      ranks.push_back(rank);
    }
  }
  if (std::ranges::find(ranks, group_->rank()) == ranks.end()) {
    return;
  }
  std::optional<mesh::World> world;
  {
    const std::lock_guard lock(mutex_);
    world = epoch_world_;
  }
  if (!world) {
    throw_error<CommError>("[elastic] the epoch has ended");
  }
  transfer_ = std::make_unique<StateTransfer>(
      state_, world->make_group("state", ranks), std::move(buffers_));
}

void Manager::wait_for_transfer() {
  if (transfer_ && !step_error_) {
    keep_failure([&] {
      transfer_->wait();
      if (transfer_->sends()) {
        quorum_.note_transfer(transfer_->bytes(), transfer_->milliseconds());
      }
    });
  }
}

/// Makes what has arrived the state of this rank.
void Manager::take_state() {
  transfer_->load();
  has_state_ = true;
}

} // namespace weft::elastic
