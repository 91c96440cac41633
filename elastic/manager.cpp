#include "elastic/manager.h"

#include <algorithm>
#include <sstream>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/fnv.h"
#include "lighthouse/clock.h"
#include "lighthouse/lighthouse.h"
#include "mesh/error/error.h"

namespace weft::elastic {
namespace {

using mesh::CommError;
using mesh::throw_error;
using Phase = Member::Phase;

/// A quarter of the time after which a group without a report is suspected.
constexpr Time kHeartbeat = LighthouseOptions().suspect / 4;

template <class T>
std::string saved(const T& object) {
  std::ostringstream out;
  torch::save(object, out);
  return std::move(out).str();
}

template <class T>
void load(T& object, const std::string& bytes) {
  std::istringstream in(bytes);
  torch::load(object, in);
}

mesh::World checked(mesh::World world) {
  if (world.world_size() > 1) {
    throw_error<mesh::UsageError>(mesh::detail::concat(
        "[elastic] a replica group of ",
        world.world_size(),
        " ranks is not supported yet. Start the program with weftrun "
        "--replica-size 1"));
  }
  return world;
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
  return {count * group_ / groups_, count * (group_ + 1) / groups_};
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
    : Manager(std::move(world), LighthouseLink::from_env(), options) {}

Manager::Manager(
    mesh::World world,
    std::shared_ptr<LighthouseLink> link,
    ManagerOptions options)
    : world_(checked(std::move(world))),
      link_(std::move(link)),
      options_(options),
      member_(link_->group(), LighthouseOptions().lease, now()) {
  link_->listen([this](const Reply& reply) { follow(reply); });
  heart_ = std::thread([this] { beat(); });
}

Manager::~Manager() {
  link_->listen({});
  {
    const Lock lock(mutex_);
    if (std::uncaught_exceptions() == 0) {
      member_.finish();
      report(lock);
    }
    is_over_ = true;
    changed_.notify_all();
  }
  heart_.join();
}

void Manager::register_state(std::string name, Save save, Load load) {
  states_.push_back({std::move(name), std::move(save), std::move(load)});
}

void Manager::register_module(
    std::string name,
    std::shared_ptr<torch::nn::Module> module) {
  register_state(
      std::move(name),
      [module] { return saved(module); },
      [module](const std::string& bytes) mutable { load(module, bytes); });
}

void Manager::register_optimizer(
    std::string name,
    torch::optim::Optimizer& optimizer) {
  register_state(
      std::move(name),
      [&optimizer] { return saved(optimizer); },
      [&optimizer](const std::string& bytes) { load(optimizer, bytes); });
}

int64_t Manager::step() const {
  const std::lock_guard lock(mutex_);
  return member_.applied() ? member_.applied().step : options_.step;
}

int64_t Manager::epochs() const {
  const std::lock_guard lock(mutex_);
  return epochs_;
}

// The other threads: what the lighthouse says, and the heartbeat.

void Manager::follow(const Reply& reply) {
  const Lock lock(mutex_);
  const auto epoch = member_.epoch().number;
  const auto phase = member_.phase();
  const auto ballot = member_.ballot();
  member_.receive(reply, now());
  if (epoch_world_ &&
      (member_.phase() == Phase::kOutside || member_.epoch().number != epoch)) {
    epoch_world_->abort();
  }
  if (member_.phase() != phase || member_.epoch().number != epoch ||
      member_.ballot() != ballot) {
    report(lock);
  }
  changed_.notify_all();
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
    link_->send(member_.report(now()));
  } catch (const CommError&) {
    link_error_ = std::current_exception();
    changed_.notify_all();
  }
}

void Manager::leave(Lock& lock) {
  member_.leave();
  if (epoch_world_) {
    epoch_world_->abort();
    epoch_world_.reset();
  }
  report(lock);
}

// The calling thread.

/// Leaves the epoch that was entered, unless a newer one is to be entered.
void Manager::leave_entered_epoch() {
  Lock lock(mutex_);
  if (member_.epoch().number == entered_.number) {
    leave(lock);
  } else {
    epoch_world_.reset();
  }
  lock.unlock();
  group_.reset();
}

Step Manager::begin_step() {
  step_error_ = nullptr;
  while (true) {
    if (!group_) {
      enter_next_epoch();
    }
    try {
      if (!has_shared_state_) {
        share_state();
      }
      const std::lock_guard lock(mutex_);
      if (member_.phase() == Phase::kTraining) {
        return Step(
            *this, member_.applied().step, group_->size(), group_->rank());
      }
    } catch (const CommError&) { // Most often, a group was lost meanwhile.
      count_failure(entered_.members, std::current_exception());
    }
    leave_entered_epoch();
  }
}

void Manager::all_reduce(const at::Tensor& tensor, std::string_view name) {
  if (step_error_ || !group_) {
    return;
  }
  try {
    group_->all_reduce(tensor, mesh::ReduceOp::kSum, name).wait();
  } catch (const CommError&) {
    step_error_ = std::current_exception();
  }
}

// See Note [One lineage] in lighthouse/messages.h.
bool Manager::commit_step() {
  if (is_committed()) {
    failures_ = 0;
    return true;
  }
  if (step_error_) {
    count_failure(entered_.members, step_error_);
  }
  leave_entered_epoch();
  return enter_next_epoch();
}

/// Prepares the step and applies it if all groups are prepared.
bool Manager::is_committed() {
  bool leaves = false;
  {
    const std::lock_guard lock(mutex_);
    if (step_error_ || member_.phase() != Phase::kTraining) {
      return false;
    }
    leaves = member_.leaves_after_step();
    member_.prepare();
  }
  auto ready = at::full({1}, leaves ? 1 : 0, at::kLong);
  all_reduce(ready, "ready");
  Lock lock(mutex_);
  if (step_error_ || !member_.commit(now())) {
    return false;
  }
  if (ready.item<int64_t>() > 0) { // All leave, to let others in.
    leave(lock);
    lock.unlock();
    group_.reset();
  }
  return true;
}

/// Throws the error if the same groups have failed three times in a row: no
/// loss of a group explains it.
void Manager::count_failure(
    const std::vector<GroupId>& groups,
    const std::exception_ptr& error) {
  constexpr int64_t kMost = 3;
  failures_ = groups == failed_groups_ ? failures_ + 1 : 1;
  failed_groups_ = groups;
  if (failures_ >= kMost) {
    std::rethrow_exception(error);
  }
}

/// Enters the next epoch that comes about. Returns true if it begins after the
/// step that this group is prepared for.
bool Manager::enter_next_epoch() {
  bool applies = false;
  while (true) {
    Lock lock(mutex_);
    changed_.wait(lock, [&] {
      return link_error_ || member_.phase() == Phase::kMeeting;
    });
    if (link_error_) {
      std::rethrow_exception(link_error_);
    }
    const auto epoch = member_.epoch();
    lock.unlock();
    if (try_to_enter(epoch, applies)) {
      return applies;
    }
  }
}

bool Manager::try_to_enter(const Epoch& epoch, bool& applies) {
  try {
    meet(epoch);
  } catch (const CommError&) {
    group_.reset();
    Lock lock(mutex_);
    const bool is_own = member_.epoch().number == epoch.number &&
                        member_.phase() == Phase::kMeeting;
    if (member_.epoch().number == epoch.number) {
      leave(lock);
    }
    lock.unlock();
    if (is_own) { // Nobody has ended the meeting.
      count_failure(epoch.members, std::current_exception());
    }
    return false;
  }
  Lock lock(mutex_);
  if (member_.epoch().number == epoch.number &&
      member_.phase() == Phase::kMeeting && member_.enter(now(), applies)) {
    ++epochs_;
    entered_ = epoch;
    has_shared_state_ = false;
    report(lock);
    return true;
  }
  epoch_world_.reset();
  lock.unlock();
  group_.reset();
  return false;
}

/// Connects the groups of an epoch.
void Manager::meet(const Epoch& epoch) {
  const auto place = std::ranges::find(epoch.members, link_->group());
  const auto world = world_.scoped(
      c10::make_intrusive<c10d::PrefixStore>(
          key_prefix(epoch.number), link_->store()),
      place - epoch.members.begin(),
      std::ssize(epoch.members),
      options_.timeout);
  {
    const std::lock_guard lock(mutex_);
    epoch_world_ = world;
    if (member_.epoch().number != epoch.number ||
        member_.phase() != Phase::kMeeting) {
      world.abort();
    }
  }
  group_ = world.group();
}

std::string Manager::state_names() const {
  std::string names;
  for (const auto& state : states_) {
    names += state.name + ' ';
  }
  return names;
}

/// Throws DisagreementError if the groups have registered different states.
void Manager::check_state_names(const at::Tensor& hashes) const {
  const auto others = hashes.ne(hashes[group_->rank()]).nonzero();
  if (others.numel() > 0) {
    throw_error<mesh::DisagreementError>(mesh::detail::concat(
        "[elastic] group ",
        others[0].item<int64_t>(),
        " of the epoch has registered other states than this group, which "
        "has: ",
        state_names(),
        ". Start all groups with the same program, which registers the same "
        "states in the same order"));
  }
}

/// Gives the state to the groups that came without it.
void Manager::share_state() {
  bool has_state = false;
  {
    const std::lock_guard lock(mutex_);
    has_state = member_.phase() == Phase::kTraining;
  }
  const auto own = at::tensor(
      {static_cast<int64_t>(base::fnv1a(state_names())),
       int64_t{has_state ? 1 : 0}},
      at::kLong);
  auto all = at::zeros({group_->size(), own.numel()}, at::kLong);
  group_->all_gather(all, own, "states").wait();
  check_state_names(all.select(1, 0));
  const auto have_state = all.select(1, 1);
  if (have_state.sum().item<int64_t>() < group_->size()) {
    // Without any, all begin from what the first has loaded.
    const auto source = have_state.argmax().item<int64_t>();
    auto step = at::full({1}, options_.step, at::kLong);
    group_->broadcast(step, source, "step").wait();
    transfer_state(source, !has_state && source != group_->rank());
    const std::lock_guard lock(mutex_);
    if (member_.phase() == Phase::kWithoutState) {
      member_.take_state(step.item<int64_t>());
    }
  }
  has_shared_state_ = true;
}

/// Sends the states of `source` to all groups, and loads them if this one is
/// to.
void Manager::transfer_state(int64_t source, bool loads) {
  std::vector<std::string> parts;
  for (const auto& state : states_) {
    auto bytes = broadcast(
        source == group_->rank() ? state.save() : std::string(), source);
    if (loads) {
      parts.push_back(std::move(bytes));
    }
  }
  // Nothing is loaded before everything is there.
  for (size_t i = 0; i < parts.size(); ++i) {
    states_[i].load(parts[i]);
  }
}

std::string Manager::broadcast(std::string bytes, int64_t source) {
  auto size = at::full({1}, std::ssize(bytes), at::kLong);
  group_->broadcast(size, source, "state").wait();
  bytes.resize(static_cast<size_t>(size.item<int64_t>()));
  group_
      ->broadcast(
          at::from_blob(bytes.data(), {std::ssize(bytes)}, at::kByte),
          source,
          "state")
      .wait();
  return bytes;
}

} // namespace weft::elastic
