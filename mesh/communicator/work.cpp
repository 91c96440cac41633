#include "mesh/communicator/work.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include "base/string_streams.h"
#include "mesh/bootstrap/debug_level.h"
#include "mesh/communicator/call.h"
#include "mesh/communicator/collective_observer.h"
#include "mesh/communicator/format.h"
#include "mesh/communicator/group_watch.h"
#include "mesh/error/failure.h"

namespace weft::mesh {

GroupFailure GroupState::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void GroupState::fail(const GroupFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.reason.empty()) {
      failure_ = failure;
    }
  }
  backend->abort();
}

ErrorContext GroupState::describe(const FlightRecorderEntry& call) const {
  const auto& members = backend->members();
  base::StringWriter out;
  out << "rank " << members.rank << "/" << members.ranks.size() << ", group \""
      << members.name << "\"";
  if (!call.name.empty()) {
    out << ", tensor \"" << call.name << "\"";
  }
  if (call.op != "barrier") {
    out << (call.name.empty() ? ", tensor [" : " [");
    for (size_t i = 0; i < call.shape.size(); ++i) {
      out << (i == 0 ? "" : ", ") << call.shape[i];
    }
    out << "] " << c10::toString(call.dtype);
  }
  return {out.str()};
}

void GroupState::throw_failure(
    const FlightRecorderEntry& call,
    const GroupFailure& failure) const {
  const auto text = detail::concat(
      "[", call.op, "] ", failure.reason, ". (", describe(call).text, ")");
  if (failure.is_disagreement) {
    throw_error<DisagreementError>(text);
  }
  throw_comm_error(text, failure.is_timeout);
}

void check_usable(GroupState& group, const FlightRecorderEntry& call) {
  auto failure = group.failure();
  if (failure.reason.empty()) {
    failure = group.backend->failure();
    if (!failure.reason.empty()) { // A device collective failed after wait().
      if (const auto watch = group.watch.lock()) {
        failure = watch->explain(failure);
      }
      group.fail(failure);
    }
  }
  if (!failure.reason.empty()) {
    group.throw_failure(call, failure);
  }
}

struct Work::State {
  std::shared_ptr<GroupState> group;
  FlightRecorderEntry call;
  std::unique_ptr<BackendWork> pending;
  std::function<void()> finish;
  bool ended_by_backend = false;
  /// The Works that this one combines. If there are any, the members above are
  /// unused.
  std::vector<Work> parts;

  std::mutex mutex;
  std::atomic<bool> done = false;
  std::exception_ptr error;

  void complete();
  void run();
  /// Fails the group. Returns the exception to throw to the caller for `cause`,
  /// which is being handled.
  std::exception_ptr translate(const std::exception& cause) const;
};

std::exception_ptr Work::State::translate(const std::exception& cause) const {
  if (is_out_of_memory(cause)) { // Checked first: the rest allocates memory.
    group->fail({.reason = kOutOfMemory});
    return std::current_exception();
  }
  auto failure = group->failure();
  if (failure.reason.empty()) {
    failure = failure_reason(cause, group->backend->members().timeout);
    if (const auto watch = group->watch.lock()) {
      failure = watch->explain(failure);
    }
  }
  group->fail(failure);
  try {
    group->throw_failure(call, failure);
  } catch (...) {
    return std::current_exception();
  }
}

void Work::State::run() {
  const auto start = std::chrono::steady_clock::now();
  group->flight_recorder->begin_wait(call.sequence);
  try {
    // wait() and finish() may write to views of parameters.
    const at::NoGradGuard no_grad;
    pending->wait();
    if (finish) {
      finish();
    }
  } catch (const std::exception& cause) {
    error = translate(cause);
  }
  group->flight_recorder->end_wait(call.sequence);
  if (!ended_by_backend) {
    group->flight_recorder->end(call.sequence);
  }
  group->flight_recorder->add_blocked(std::chrono::steady_clock::now() - start);
}

void Work::State::complete() {
  const std::lock_guard lock(mutex);
  if (!done) {
    for (Work& part : parts) {
      try {
        part.wait();
      } catch (...) {
        error = error ? error : std::current_exception();
      }
    }
    if (pending) {
      run();
      pending.reset();
      finish = nullptr;
    }
    done = true;
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

Work::Work() = default;
Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

void Work::wait() {
  if (state_) {
    state_->complete();
  }
}

bool Work::is_completed() const {
  if (!state_ || state_->done) {
    return true;
  }
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock) { // Another thread is in wait().
    return false;
  }
  for (const Work& part : state_->parts) {
    if (!part.is_completed()) {
      return false;
    }
  }
  return !state_->pending || state_->pending->is_completed();
}

namespace {

// Waits until all ranks have announced the same collective, if the debug level
// is kDetail. PyTorch's ProcessGroupWrapper does this at the same level.
void agree_first(GroupState& group, const FlightRecorderEntry& call) {
  if (get_debug_level() != DebugLevel::kDetail) {
    return;
  }
  if (const auto pending = group.backend->agree()) {
    group.flight_recorder->begin_wait(call.sequence);
    const auto end = c10::make_scope_exit(
        [&] { group.flight_recorder->end_wait(call.sequence); });
    pending->wait();
  }
}

// Sets `call.caller`. Fails the group if the order of its callers may differ
// between ranks. See Note [One caller].
void note_caller(GroupState& group, FlightRecorderEntry& call) {
  const auto entry = group.callers.enter(call);
  call.caller = entry.caller;
  if (entry.conflict.empty()) {
    return;
  }
  const auto& members = group.backend->members();
  GroupFailure failure{
      detail::concat(
          "Threads of rank ",
          members.ranks[static_cast<size_t>(members.rank)],
          " call on group \"",
          members.name,
          "\" in an order that differs between ranks: ",
          entry.conflict,
          ". ",
          kOneCaller),
      true};
  if (const auto watch = group.watch.lock()) {
    failure = watch->publish_failure(failure);
  }
  group.fail(failure);
  group.throw_failure(call, failure);
}

} // namespace

Work launch(
    const std::shared_ptr<GroupState>& group,
    FlightRecorderEntry call,
    const Start& start,
    std::function<void()> finish) {
  check_usable(*group, call);
  const at::NoGradGuard no_grad;
  const bool recorded = group->backend->size() > 1;
  const auto began = std::chrono::steady_clock::now();
  std::unique_lock order(group->launch_mutex);
  if (recorded) {
    note_caller(*group, call);
    call.identity = identity_of(call);
    call.sequence = group->flight_recorder->begin(call);
    group->backend->announce(call.identity);
    if (auto* observer = collective_observer()) {
      observer->launched(
          group->backend->members(), *group->flight_recorder, call);
    }
  }
  auto state = std::make_shared<Work::State>();
  state->group = group;
  state->call = std::move(call);
  try {
    if (recorded) {
      agree_first(*group, state->call);
    }
    state->pending = start(*group->backend);
  } catch (const std::exception& cause) {
    group->flight_recorder->end(state->call.sequence);
    order.unlock();
    std::rethrow_exception(state->translate(cause));
  }
  order.unlock();
  // Over shared memory, `start` already moves data on this thread, and the last
  // rank to arrive moves all its data. So this time counts as blocked.
  if (recorded) {
    group->flight_recorder->add_blocked(
        std::chrono::steady_clock::now() - began);
  }
  if (!state->pending) {
    if (finish) {
      finish();
    }
    if (recorded) {
      group->flight_recorder->end(state->call.sequence);
    }
    return Work();
  }
  state->finish = std::move(finish);
  // On the host `finish` is part of the operation, so wait() ends the entry
  // after it.
  if (!state->finish || state->pending->is_on_device()) {
    state->ended_by_backend = state->pending->when_completed(
        [flight_recorder = group->flight_recorder,
         sequence = state->call.sequence] { flight_recorder->end(sequence); });
  }
  return Work(std::move(state));
}

Work combine(std::vector<Work> works) {
  if (works.size() == 1) {
    return works.front();
  }
  auto state = std::make_shared<Work::State>();
  state->parts = std::move(works);
  return Work(std::move(state));
}

} // namespace weft::mesh
