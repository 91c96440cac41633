// A step of the replica groups: its sums, and the decision whether to apply it.
// See Note [Ranks of a group] in elastic/manager.cpp.
#include <chrono>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "elastic/manager.h"
#include "lighthouse/clock.h"
#include "mesh/error/error.h"

namespace weft::elastic {

namespace {

using mesh::CommError;
using Phase = lighthouse::Member::Phase;

/// The message of the groups that are prepared for a step: whether a group
/// leaves, and a hash that must be equal in all groups with the state. Sums are
/// enough to compare it: n numbers are equal if n times the sum of their
/// squares is the square of their sum.
class ReadyGroups {
 public:
  /// A group without a hash is not compared.
  ReadyGroups(bool leaves, std::optional<uint64_t> hash)
      : sums_(at::zeros({2 + 2 * kPieces}, at::kLong)) {
    auto* sums = sums_.mutable_data_ptr<int64_t>();
    sums[0] = leaves ? 1 : 0;
    sums[1] = hash ? 1 : 0;
    for (int64_t i = 0; i < kPieces; ++i) {
      const auto piece = static_cast<int64_t>(
          (hash.value_or(0) >> (i * kBits)) & ((1 << kBits) - 1));
      sums[2 + 2 * i] = piece;
      sums[3 + 2 * i] = piece * piece;
    }
  }
  /// The tensor that the caller sums over the groups in place.
  const at::Tensor& sums() const { return sums_; }
  bool any_leaves() const { return at(0) > 0; }
  bool are_alike() const {
    for (int64_t i = 0; i < kPieces; ++i) {
      if (at(1) * at(3 + 2 * i) != at(2 + 2 * i) * at(2 + 2 * i)) {
        return false;
      }
    }
    return true;
  }

 private:
  // The products in are_alike() do not overflow for fewer than 2^13 groups.
  static constexpr int64_t kBits = 18;
  static constexpr int64_t kPieces = 3;
  int64_t at(int64_t i) const { return sums_.const_data_ptr<int64_t>()[i]; }

  at::Tensor sums_;
};

std::function<void()> wait_of(mesh::Work work) {
  return [work = std::move(work)]() mutable { work.wait(); };
}

} // namespace

std::pair<int64_t, int64_t> Step::share(int64_t count) const {
  WEFT_CHECK(
      count >= groups_,
      "elastic",
      mesh::ErrorContext(),
      "samples of the step: got ",
      count,
      ", expected at least one per replica group, of which there are ",
      groups_,
      ". Give the step more samples, or start fewer groups.");
  const int64_t part = counts() ? group_ : 0;
  return {count * part / groups_, count * (part + 1) / groups_};
}

std::pair<int64_t, int64_t> Step::lanes() const {
  WEFT_CHECK(
      manager_.lanes_.are_used(),
      "elastic",
      mesh::ErrorContext(),
      "The manager has no lanes. Set ManagerOptions::lanes, or use "
      "Step::share().");
  return manager_.lanes_.own();
}

LaneScope Step::enter_lane(int64_t lane) {
  lanes(); // Throws if there are no lanes.
  manager_.lanes_.enter(lane);
  return LaneScope(manager_.lanes_);
}

std::function<void()> Step::start_sum_over_groups(
    const at::Tensor& tensor,
    std::string_view name) {
  return manager_.start_sum(
      tensor, name, {.is_over_lanes = false, .is_needed_now = false});
}

void Step::wait_for_transfer() {
  manager_.wait_for_transfer();
}

bool Step::is_prepared() {
  return manager_.is_prepared();
}

bool Step::commit(std::optional<bool> are_all_prepared) {
  WEFT_CHECK(
      !is_over_,
      "elastic",
      mesh::ErrorContext(),
      "Step ",
      number_,
      " was committed twice. Call begin_step() for the next one.");
  if (!manager_.step_error_) {
    manager_.lanes_.check_complete();
  }
  is_over_ = true;
  return manager_.commit_step(are_all_prepared);
}

Step Manager::begin_step() {
  if (!is_begun_) {
    begin();
  }
  step_error_ = nullptr;
  leaves_after_step_ = false;
  has_sent_changes_ = false;
  while (true) {
    if (!group_) {
      enter_next_epoch();
    }
    if ((is_ready_ || compare_states()) && !is_known_to_fail()) {
      if (!are_too_few()) {
        quorum_.begin_step(step());
        lanes_.begin_step();
        return Step(*this, step(), counting_groups_, position_);
      }
      end_with_too_few();
    }
    leave_entered_epoch();
  }
}

/// Returns true if the step is known to fail. Only a group of one rank knows
/// this without a message. Several ranks learn it in the vote.
bool Manager::is_known_to_fail() const {
  const std::lock_guard lock(mutex_);
  return world_.world_size() == 1 && has_ended(entered_.number);
}

void Manager::all_reduce(const at::Tensor& tensor, std::string_view name) {
  start_sum(
      tensor,
      name,
      {.is_over_lanes = lanes_.is_inside(), .is_needed_now = true})();
}

std::function<void()> Manager::start_all_reduce(
    const at::Tensor& tensor,
    std::string_view name) {
  return start_sum(
      tensor,
      name,
      {.is_over_lanes = lanes_.is_inside(), .is_needed_now = false});
}

std::function<void()> Manager::start_sum(
    const at::Tensor& tensor,
    std::string_view name,
    SumKind kind) {
  const auto send = [&] { return send_sum(tensor, name, kind.is_needed_now); };
  std::function<void()> wait;
  if (!step_error_) {
    keep_failure([&] {
      if (kind.is_over_lanes) {
        wait = lanes_.start_sum(*group_, tensor, name, send);
      } else if (counting_groups_ == 1) {
        wait = send();
      } else {
        wait = start_group_sum(tensor, name);
      }
    });
  }
  // After a failure, too, the tensor must live until nothing writes to it.
  return [this, wait = std::move(wait)] {
    if (wait) {
      keep_failure(wait);
    }
  };
}

std::function<void()> Manager::start_group_sum(
    const at::Tensor& tensor,
    std::string_view name) {
  if (position_ >= counting_groups_) {
    const at::NoGradGuard no_grad;
    tensor.zero_();
  }
  return wait_of(group_->all_reduce(tensor, mesh::ReduceOp::kSum, name));
}

/// Sends the sum from the only group that counts to the groups that receive the
/// state. If the sum is needed now, it goes between two slices of the state.
/// Otherwise it follows the state, which takes no time from computing threads.
std::function<void()> Manager::send_sum(
    const at::Tensor& tensor,
    std::string_view name,
    bool is_needed_now) {
  if (transfer_ && !is_needed_now) {
    return transfer_->send(tensor, name);
  }
  return wait_of(group_->broadcast(tensor, first_counting_, name));
}

/// Runs a part of a collective of the step and keeps its CommError for the
/// vote. Does nothing if this group has left the epoch.
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
bool Manager::commit_step(std::optional<bool> are_all_prepared) {
  if (is_committed(are_all_prepared)) {
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
    failures_ = 0;
    quorum_.commit(step);
  }
  return applies;
}

/// Prepares the step, and commits it if all groups are prepared.
bool Manager::is_committed(std::optional<bool> are_all_prepared) {
  const bool is_prepared = this->is_prepared();
  WEFT_CHECK(
      is_prepared || !are_all_prepared.value_or(false),
      "elastic",
      mesh::ErrorContext(),
      "Step::commit() was told that all ranks are prepared, but this one is "
      "not. Reduce Step::is_prepared() over the ranks of the group.");
  if (!(are_all_prepared ? *are_all_prepared : is_on_all_ranks(is_prepared))) {
    step_error_ = step_error_ ? step_error_ : error_of_another_rank();
    return false;
  }
  bool commits = false;
  bool leaves = false;
  bool takes_state = false;
  bool differs = false;
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
      // A group that just received the state has the numbers of its sender, so
      // it is not compared.
      ReadyGroups ready(
          leaves,
          takes_state ? std::nullopt : std::optional(state_.hash_of_numbers()));
      keep_failure([&] {
        group_->all_reduce(ready.sums(), mesh::ReduceOp::kSum, "ready").wait();
      });
      differs = !step_error_ && !ready.are_alike();
      lock.lock();
      commits = !step_error_ && !differs && member_.commit(lighthouse::now());
      leaves = commits && ready.any_leaves();
    }
  }
  const auto decision = from_leader(
      {commits ? 1 : 0, leaves ? 1 : 0, takes_state ? 1 : 0, differs ? 1 : 0});
  if (decision[2] != 0) {
    take_state();
  }
  if (decision[3] != 0) {
    state_.check_numbers(*group_, step());
  }
  if (decision[0] == 0) {
    return false;
  }
  quorum_.commit(step());
  set_counting(std::vector<bool>(group_->size(), true));
  transfer_.reset();
  Lock lock(mutex_);
  ++step_;
  if (decision[1] != 0) { // All groups leave, so that one can join or end.
    has_left_for_good_ = leaves_after_step_;
    leave(lock);
    lock.unlock();
    group_.reset();
  }
  return true;
}

/// Throws the error if the same groups have failed three times in a row without
/// an applied step, because the loss of a group does not explain that. The
/// leader counts for all ranks of its group.
void Manager::count_failure(const std::exception_ptr& error) {
  constexpr int64_t kMost = 3;
  failures_ = entered_.members == failed_groups_ ? failures_ + 1 : 1;
  failed_groups_ = entered_.members;
  if (leads() && failures_ >= kMost) {
    std::rethrow_exception(error);
  }
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

bool Manager::is_prepared() {
  wait_for_transfer();
  send_changes();
  return !step_error_;
}

/// Sends state that changed since the transfer to late groups began, e.g. a
/// learning rate that the caller set after begin_step(). They must have the
/// state with which the step is committed.
void Manager::send_changes() {
  const bool has_late_groups = group_ && counting_groups_ < group_->size();
  if (transfer_ && has_late_groups && !step_error_ &&
      !std::exchange(has_sent_changes_, true)) {
    keep_failure([&] { transfer_->send_changes(); });
  }
}

void Manager::take_state() {
  transfer_->load();
  has_state_ = true;
}

} // namespace weft::elastic
