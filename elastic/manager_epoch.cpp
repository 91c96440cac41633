// The way of a replica group into an epoch, and the state that it gets there
// from the other groups. See Note [Ranks of a group] in elastic/manager.cpp.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <ATen/ops/full.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "elastic/manager.h"
#include "lighthouse/clock.h"
#include "mesh/communicator/exchange.h"
#include "mesh/error/error.h"

namespace weft::elastic {

namespace {

using mesh::CommError;
using mesh::throw_error;
using Phase = lighthouse::Member::Phase;

} // namespace

/// Blocks until this group has entered an epoch. Returns true if the epoch
/// begins after the step that this group is prepared for.
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

/// Waits for the next epoch. Returns nullopt after a second without one,
/// because the other ranks of the group wait in a collective meanwhile.
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
    if (is_own) { // The lighthouse did not end the epoch.
      count_failure(error ? error : error_of_another_rank());
    }
    return {};
  }
  Entry entry;
  if (leads()) {
    const std::lock_guard lock(mutex_);
    entry.is_entered = member_.epoch().number == place.number &&
                       member_.phase() == Phase::kMeeting &&
                       member_.enter(lighthouse::now(), entry.applies);
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
          lighthouse::key_prefix(place.number) + std::to_string(world_.rank()),
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

/// Compares the registered states of the groups, and starts to send the state
/// to groups without it. Returns true if this group can begin a step.
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
    // If no group has a state, all begin from the newest checkpoint that a
    // group has loaded.
    const auto source = (with_state > 0 ? have_state : all.select(1, 2))
                            .argmax()
                            .item<int64_t>();
    state_.check_alike(*group_, source);
    record_quorum(all.select(1, 1).contiguous());
    std::vector<bool> counts(group_->size(), true);
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
      for (int64_t rank = 0; rank < group_->size(); ++rank) {
        counts[rank] = have_state[rank].item<int64_t>() != 0;
      }
    }
    set_counting(counts);
  } catch (const CommError&) { // Usually a group was lost.
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

/// Sets which groups' gradients count. `counts` has one element per group.
void Manager::set_counting(const std::vector<bool>& counts) {
  const auto rank = group_->rank();
  counting_groups_ = std::ranges::count(counts, true);
  first_counting_ = std::ranges::find(counts, true) - counts.begin();
  position_ = counts[rank]
                  ? std::count(counts.begin(), counts.begin() + rank, true)
                  : counting_groups_;
  lanes_.divide(counts, rank);
}

/// Connects the groups without state with the group `source`, which sends it.
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

/// `numbers` are the numbers of the replica groups in the order of ranks.
void Manager::record_quorum(const at::Tensor& numbers) {
  lighthouse::Time left;
  {
    const std::lock_guard lock(mutex_);
    left = std::exchange(left_, lighthouse::Time{0});
  }
  if (leads()) {
    const auto* data = numbers.const_data_ptr<int64_t>();
    quorum_.enter(
        entered_, {data, data + numbers.numel()}, left, lighthouse::now());
  }
}

bool Manager::are_too_few() const {
  return group_->size() < options_.min_groups;
}

/// Ends the run after the groups have waited for other groups. The groups end
/// together, so that none starts again before the state is saved. Throws,
/// unless the group that saves the state is lost.
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
      "[elastic] replica groups: got ",
      group_->size(),
      ", expected at least min_groups = ",
      options_.min_groups,
      ". The groups that are left have waited for others and end after step ",
      step()));
}

/// Leaves the entered epoch, unless the leader already has a newer one to
/// enter.
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

} // namespace weft::elastic
