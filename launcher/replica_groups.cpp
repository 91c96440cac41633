#include "launcher/replica_groups.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/loopback.h"
#include "launcher/process/error.h"
#include "launcher/process/outcome.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;

/// The duration of an attempt after which the restart delays start over. It is
/// short, because the other groups continue: an unnecessary restart costs
/// little, and a group that waits cannot replace the next one that is lost.
constexpr milliseconds kLasting = std::chrono::seconds(10);

lighthouse::LighthouseOptions lighthouse_options(const Options& options) {
  lighthouse::LighthouseOptions result;
  result.expected_groups = options.worker_count / options.replica_size;
  result.is_first_start = true;
  return result;
}

/// Returns the reason for a group's end, as far as the launcher knows it at
/// once.
std::string reason_of(const Outcome& outcome) {
  const auto cause = root_cause(outcome);
  if (!cause) {
    return "";
  }
  return cause->signal != 0 ? signal_name(cause->signal)
                            : fmt::format("exit code {}", cause->code);
}

} // namespace

ReplicaGroups::ReplicaGroups(const LauncherHost& host, SignalQueue& signals)
    : host_(host),
      signals_(signals),
      coordinator_(lighthouse_options(host.options)),
      wake_fd_(make_wake_fd({signals_.fd(), coordinator_.fd()})) {
  const auto& options = host_.options;
  for (int first = 0; first < options.worker_count;
       first += options.replica_size) {
    groups_.push_back(
        {.number = first / options.replica_size,
         .workers = {first, options.replica_size},
         .restarts = RestartPolicy(options.max_restarts, kLasting)});
  }
}

RunResult ReplicaGroups::run() {
  for (auto& group : groups_) {
    start(group);
  }
  while (!is_over()) {
    if (host_.output.wait(wake_fd_.get(), time_left())) {
      for (const int signal : signals_.take()) {
        handle_signal(signal);
      }
      coordinator_.dispatch();
    }
    for (auto& group : groups_) {
      advance(group);
    }
  }
  return result();
}

bool ReplicaGroups::is_over() const {
  return std::ranges::none_of(groups_, [](const Group& group) {
    return group.attempt || group.restart_at;
  });
}

milliseconds ReplicaGroups::time_left() const {
  milliseconds least(-1);
  const auto consider = [&](milliseconds time) {
    if (time.count() >= 0) {
      least = least.count() < 0 ? time : std::min(least, time);
    }
  };
  for (const auto& group : groups_) {
    if (group.attempt) {
      consider(group.attempt->supervisor().time_left());
    } else if (group.restart_at) {
      consider(std::max(
          milliseconds(0),
          std::chrono::ceil<milliseconds>(*group.restart_at - Clock::now())));
    }
  }
  return least;
}

void ReplicaGroups::start(Group& group) {
  WorkerContext context;
  context.rank_assignment.world_size = group.workers.count;
  context.rank_assignment.restart_count = group.restarts.count();
  context.workers = group.workers;
  context.replica_group = group.number;
  context.replica_groups = static_cast<int>(groups_.size());
  group.life = ++lives_;
  context.group_life = group.life;
  group.restart_at.reset();
  group.is_killed = false;
  group.started = Clock::now();
  group.attempt = std::make_unique<Attempt>(
      host_,
      std::move(context),
      base::loopback_address(),
      0,
      [&](int local_rank) {
        return coordinator_.connect_worker(local_rank, group.life);
      });
  group.attempt->supervisor().collect_exits();
}

void ReplicaGroups::handle_signal(int signal) {
  if (signals_.is_termination_request(signal) || signal == SIGUSR1) {
    coordinator_.end_run();
  }
  bool has_stopped = false;
  for (auto& group : groups_) {
    if (!group.attempt) {
      continue;
    }
    auto& supervisor = group.attempt->supervisor();
    if (signal == SIGCHLD) {
      supervisor.collect_exits();
    } else if (signals_.is_forwarded_only(signal)) {
      supervisor.pass_on(signal);
    } else {
      has_stopped = supervisor.request_stop(signal) || has_stopped;
    }
  }
  if (signal == SIGCHLD) {
    return;
  }
  if (signals_.is_forwarded_only(signal)) {
    log_passed_on(host_, signal);
    return;
  }
  cancel_restarts(signal);
  log_stop(host_, signal, has_stopped);
}

/// Starts a group again. If it cannot start, only this group fails.
void ReplicaGroups::restart(Group& group) {
  try {
    start(group);
  } catch (const LaunchError& error) {
    group.attempt.reset();
    decide(
        group,
        {.code = 1,
         .line = failure_line(1, error.what(), group.workers.first),
         .note = "",
         .restart_after = std::nullopt});
  }
}

/// Cancels the restarts of groups that wait for one, because a signal ends the
/// run.
void ReplicaGroups::cancel_restarts(int signal) {
  requested_signal_ = requested_signal_ == 0 ? signal : requested_signal_;
  for (auto& group : groups_) {
    group.restart_at.reset();
    if (group.attempt) {
      group.attempt->supervisor().await_end();
    }
  }
}

void ReplicaGroups::advance(Group& group) {
  if (group.restart_at && Clock::now() >= *group.restart_at) {
    restart(group);
  }
  if (!group.attempt) {
    return;
  }
  auto& supervisor = group.attempt->supervisor();
  if (!group.is_killed &&
      std::ranges::count(coordinator_.groups_to_end(), group.life) > 0) {
    group.is_killed = true;
    host_.output.log().warning(fmt::format(
        "replica group {} is killed: {}",
        group.number,
        coordinator_.lighthouse().has_finished()
            ? "the others have done all steps, and none can give it the state"
            : "it does not respond, and the others cannot go on without "
              "knowing that it has ended"));
    supervisor.pass_on(SIGKILL);
  }
  if (supervisor.advance()) {
    // The other groups need not wait for the remaining workers of this one.
    coordinator_.lose(group.life, reason_of(supervisor.outcome()));
  }
  if (supervisor.is_over()) {
    coordinator_.lose(group.life);
    end(group);
  }
}

/// Returns true if the groups have trained together and one has finished. A
/// group that starts after that would begin from the initial state.
bool ReplicaGroups::have_finished() const {
  return coordinator_.lighthouse().epoch() &&
         std::ranges::any_of(groups_, [](const Group& group) {
           return !group.attempt && group.result && group.result->code == 0 &&
                  group.result->signal == 0;
         });
}

void ReplicaGroups::end(Group& group) {
  group.result = group.attempt->finish();
  group.attempt.reset();
  if (group.result->signal != 0) {
    cancel_restarts(group.result->signal);
  } else if (group.result->code == 0) {
    coordinator_.finish(group.life);
  }
  decide(
      group,
      {.code = group.result->code,
       .line = group.result->line,
       .note = "",
       .restart_after = std::nullopt});
}

/// Decides whether a group whose attempt ended with `next` is restarted.
void ReplicaGroups::decide(Group& group, RunResult next) {
  if (have_finished() && (next.code == 0 || is_retryable(next.code))) {
    for (auto& other : groups_) {
      other.restart_at.reset();
    }
    if (next.code != 0) {
      host_.output.write_line(next.line);
      log(group, "not restarted: the other groups have finished");
    }
    return;
  }
  if (next.code == 0 || requested_signal_ != 0 || failure_) {
    return;
  }
  if (is_left_out(group, next.code)) {
    host_.output.write_line(next.line);
    log(group,
        fmt::format(
            "not restarted: exit code {} is not retried. The other "
            "groups go on",
            next.code));
    return;
  }
  group.restarts.decide(
      next,
      std::chrono::duration_cast<milliseconds>(Clock::now() - group.started));
  if (!next.restart_after) {
    log(group, next.note);
    give_up(next);
    return;
  }
  host_.output.write_line(next.line);
  log(group, next.note);
  group.restart_at = Clock::now() + *next.restart_after;
}

/// Returns true if a restarted group fails permanently while other groups
/// continue. For example, its recipe was edited, or its memory is damaged.
bool ReplicaGroups::is_left_out(const Group& group, int code) const {
  const bool is_first_life = group.life <= groups_.size();
  return !is_first_life && !is_retryable(code) &&
         std::ranges::any_of(groups_, [](const Group& other) {
           return other.attempt != nullptr;
         });
}

/// Prints a note of the restart policy with the number of the group.
void ReplicaGroups::log(const Group& group, const std::string& note) {
  if (!note.empty()) {
    host_.output.log().warning(
        fmt::format("replica group {}: {}", group.number, note));
  }
}

/// Stops the other groups, because one has failed for good.
void ReplicaGroups::give_up(const RunResult& run_result) {
  coordinator_.end_run();
  failure_ = {
      .code = run_result.code,
      .line = run_result.line,
      .note = "",
      .restart_after = std::nullopt};
  for (auto& group : groups_) {
    group.restart_at.reset();
    if (group.attempt) {
      group.attempt->supervisor().stop({.signal = SIGTERM, .requested = false});
    }
  }
}

RunResult ReplicaGroups::result() const {
  if (failure_) {
    return *failure_;
  }
  if (requested_signal_ == 0) {
    // All groups have finished.
    return {};
  }
  std::set<int> codes;
  RunResult result;
  for (const auto& group : groups_) {
    if (group.result && group.result->signal != 0) {
      codes.insert(group.result->code);
      result.line = result.line.empty() ? group.result->line : result.line;
    }
  }
  if (codes.empty()) {
    return stopped_without_worker(requested_signal_);
  }
  result.code = codes.size() == 1 ? *codes.begin()
                                  : exit_code_of_signal(requested_signal_);
  return result;
}

} // namespace weft::launcher
