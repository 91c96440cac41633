#include "launcher/launch.h"
#include "launcher/process/outcome.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "base/loopback.h"
#include "launcher/attempt.h"
#include "launcher/output/log_dir.h"
#include "launcher/output/output.h"
#include "launcher/process/orphan_reaper.h"
#include "launcher/process/signals.h"
#include "launcher/program.h"
#include "launcher/rendezvous/make_rendezvous.h"
#include "launcher/replica_groups.h"
#include "launcher/supervisor.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class Launch {
 public:
  Launch(const Options& options, const std::string& start_time)
      : options_(options),
        start_time_(start_time),
        program_(find_program(options.command.front())),
        signals_(options.signals),
        logs_(options),
        guard_(logs_.temporary()),
        output_(options, logs_),
        rendezvous_(make_rendezvous(options, host_name(), output_.log())),
        wake_fd_(make_wake_fd({signals_.fd(), rendezvous_->fd()})),
        host_{
            options_,
            start_time_,
            program_,
            signals_,
            logs_,
            guard_,
            output_} {}

  int run();

 private:
  /// Waits until `done` (may be empty) returns true, or for `limit`. Returns
  /// the signal that arrived instead, or 0.
  int wait(
      const std::function<bool()>& done,
      std::optional<milliseconds> limit = std::nullopt);
  void supervise(Supervisor& supervisor);
  void handle_signal(Supervisor& supervisor, int signal);
  /// Runs the workers once and prints their report. Returns the result of this
  /// host.
  HostResult attempt(const RankAssignment& rank_assignment);
  RunResult await_verdict();
  int finish(const RunResult& run_result);
  int finish_by_signal(int signal);
  void flush();

  const Options& options_;
  const std::string& start_time_;
  const std::string program_;
  SignalQueue signals_;
  LogDir logs_;
  OrphanReaper guard_;
  Output output_;
  const std::unique_ptr<Rendezvous> rendezvous_;
  const base::UniqueFd wake_fd_;
  const LauncherHost host_;
};

int Launch::wait(
    const std::function<bool()>& done,
    std::optional<milliseconds> limit) {
  const auto deadline = Clock::now() + limit.value_or(milliseconds(0));
  for (;;) {
    if (done && done()) {
      return 0;
    }
    const auto left =
        limit ? std::chrono::ceil<milliseconds>(deadline - Clock::now())
              : milliseconds(-1);
    if (limit && left <= milliseconds(0)) {
      return 0;
    }
    if (output_.wait(wake_fd_.get(), left)) {
      for (const int signal : signals_.take()) {
        if (signals_.is_termination_request(signal)) {
          return signal;
        }
        if (signals_.is_forwarded_only(signal)) {
          output_.log().info(fmt::format(
              "{} received, but no worker runs", signal_name(signal)));
        }
      }
      rendezvous_->dispatch();
    }
  }
}

void Launch::supervise(Supervisor& supervisor) {
  supervisor.collect_exits();
  while (!supervisor.is_over()) {
    if (output_.wait(wake_fd_.get(), supervisor.time_left())) {
      for (const int signal : signals_.take()) {
        handle_signal(supervisor, signal);
      }
      rendezvous_->dispatch();
    }
    if (const auto request = rendezvous_->take_stop_request()) {
      supervisor.stop(*request);
    }
    if (supervisor.advance()) {
      rendezvous_->report_failure();
    }
  }
}

void Launch::handle_signal(Supervisor& supervisor, int signal) {
  if (signal == SIGCHLD) {
    supervisor.collect_exits();
  } else if (signals_.is_forwarded_only(signal)) {
    log_passed_on(host_, signal);
    supervisor.pass_on(signal);
  } else {
    const bool is_forwarded = supervisor.request_stop(signal);
    log_stop(host_, signal, is_forwarded);
    if (is_forwarded) {
      rendezvous_->report_signal(signal);
    }
  }
}

HostResult Launch::attempt(const RankAssignment& rank_assignment) {
  const bool alone = rank_assignment.node_count == 1;
  const auto& hosts = options_.hosts;
  WorkerContext context;
  context.rank_assignment = rank_assignment;
  context.workers = {0, options_.worker_count};
  Attempt attempt(
      host_,
      std::move(context),
      alone && !hosts.address.empty() ? hosts.address
                                      : base::loopback_address(),
      alone ? hosts.port : 0);
  if (attempt.store_port()) {
    rendezvous_->serve_store(*attempt.store_port());
  }
  supervise(attempt.supervisor());
  return attempt.finish();
}

RunResult Launch::await_verdict() {
  std::optional<RunResult> run_result;
  const auto decided = [&] {
    run_result = rendezvous_->take_result();
    return run_result.has_value();
  };
  int first_signal = 0;
  while (const int signal = wait(decided)) {
    if (first_signal != 0) {
      // A second signal ends the wait for the other hosts.
      return {
          .code = 128 + signal,
          .line = failure_line(
              128 + signal,
              fmt::format(
                  "stopped by signal {} ({}) while other hosts still ran",
                  signal,
                  signal_name(signal))),
          .note = "",
          .restart_after = std::nullopt};
    }
    first_signal = signal;
    rendezvous_->report_signal(signal);
  }
  return *run_result;
}

int Launch::finish_by_signal(int signal) {
  rendezvous_->report_signal(signal);
  return finish(stopped_without_worker(signal));
}

int Launch::finish(const RunResult& run_result) {
  output_.log().warning(run_result.note);
  if (!run_result.line.empty()) {
    output_.write_line(run_result.line);
  }
  flush();
  return run_result.code;
}

/// Writes the remaining output, however slow the reader is. A termination
/// signal ends this early.
void Launch::flush() {
  while (output_.pending()) {
    if (output_.wait(signals_.fd(), milliseconds(-1)) &&
        std::ranges::any_of(signals_.take(), [&](int signal) {
          return signals_.is_termination_request(signal);
        })) {
      break;
    }
  }
}

int Launch::run() {
  if (options_.replica_size > 0) {
    return finish(ReplicaGroups(host_, signals_).run());
  }
  for (;;) {
    rendezvous_->ready();
    std::optional<RankAssignment> rank_assignment;
    std::optional<RunResult> over;
    const int signal = wait([&] {
      rank_assignment = rendezvous_->take_rank_assignment();
      over = rendezvous_->take_result();
      return rank_assignment || over;
    });
    if (signal != 0) {
      return finish_by_signal(signal);
    }
    if (over) {
      return finish(*over);
    }
    rendezvous_->end(attempt(*rank_assignment));
    const RunResult run_result = await_verdict();
    if (!run_result.restart_after) {
      return finish(run_result);
    }
    output_.write_line(run_result.line);
    output_.log().warning(run_result.note);
    if (const int stop = wait(nullptr, run_result.restart_after)) {
      return finish_by_signal(stop);
    }
  }
}

} // namespace

int launch(const Options& options, const std::string& start_time) {
  return Launch(options, start_time).run();
}

} // namespace weft::launcher
