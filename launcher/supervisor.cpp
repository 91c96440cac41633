#include "launcher/supervisor.h"

#include <algorithm>
#include <cerrno>

#include <sys/resource.h>
#include <sys/wait.h>

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;

/// The time that workers have to end after one of them has failed.
constexpr milliseconds kFailureGrace{5000};
/// The time that a killed process has to disappear. A process that waits for a
/// dead disk never does.
constexpr milliseconds kKillGrace{3000};

/// Returns the peak resident memory of the ended process. Units: bytes.
int64_t reap(pid_t pid) {
  rusage usage{};
  while (wait4(pid, nullptr, 0, &usage) < 0 && errno == EINTR) {
  }
  return usage.ru_maxrss * int64_t{1024};
}

} // namespace

Supervisor::Supervisor(
    const std::vector<Worker>& workers,
    milliseconds shutdown_timeout)
    : workers_(workers), shutdown_timeout_(shutdown_timeout) {}

bool Supervisor::is_over() const {
  return outcome_.exits.size() == workers_.size() || gave_up_;
}

Outcome Supervisor::finish() {
  // Kills the processes that workers have started and left behind. Their group
  // IDs are still valid, because ended workers are reaped after this.
  signal_groups(SIGKILL);
  for (auto& exit : outcome_.exits) {
    exit.peak_rss_bytes = reap(exit.pid);
  }
  for (const auto& worker : workers_) {
    if (!ended(worker.rank)) {
      outcome_.stuck.push_back(worker.rank);
    }
  }
  return std::move(outcome_);
}

milliseconds Supervisor::time_left() const {
  if (phase_ == Phase::kRunning) {
    return milliseconds(-1);
  }
  return std::max(
      milliseconds(0),
      std::chrono::ceil<milliseconds>(deadline_ - Clock::now()));
}

bool Supervisor::request_stop(int signal) {
  if (phase_ != Phase::kRunning) {
    if (signal == SIGQUIT) {
      kill_all();
    }
    return false;
  }
  outcome_.requested_signal = signal;
  stop(signal, shutdown_timeout_);
  return true;
}

void Supervisor::pass_on(int signal) {
  signal_groups(signal);
  if (signal == SIGUSR1) {
    forwarded_signal_ = signal;
  }
}

void Supervisor::await_end() {
  if (phase_ == Phase::kRunning && forwarded_signal_ != 0) {
    outcome_.requested_signal = forwarded_signal_;
    enter(Phase::kStopping, shutdown_timeout_);
  }
}

/// Returns true if the worker ended because of a forwarded signal, as weft
/// train does when Slurm warns of the time limit, and as a program does that
/// has no handler for the signal (yet). The other workers then get the time
/// that SIGTERM would give them, and the run is not restarted.
bool Supervisor::exited_on_forwarded_signal(const WorkerExit& exit) const {
  return forwarded_signal_ != 0 &&
         (exit.signal == forwarded_signal_ ||
          (exit.signal == 0 && exit.code == kPreempted));
}

void Supervisor::stop(const StopRequest& request) {
  if (phase_ != Phase::kRunning && phase_ != Phase::kSettling) {
    return;
  }
  if (request.requested && phase_ == Phase::kRunning) {
    outcome_.requested_signal = request.signal;
    stop(request.signal, shutdown_timeout_);
  } else {
    stop(SIGTERM, std::min(shutdown_timeout_, kFailureGrace));
  }
}

void Supervisor::collect_exits() {
  const auto seen = Clock::now();
  const auto when = std::chrono::system_clock::now();
  for (const auto& worker : workers_) {
    siginfo_t info{};
    // WNOWAIT keeps the process ID in use, so that its group can be signalled
    // safely.
    if (ended(worker.rank) ||
        waitid(
            P_PID,
            static_cast<id_t>(worker.pid),
            &info,
            WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    const int signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    outcome_.exits.push_back(
        {.rank = worker.rank,
         .pid = worker.pid,
         .code = signal == 0 ? info.si_status : 128 + signal,
         .signal = signal,
         .seen = seen,
         .when = when,
         .stopped = phase_ == Phase::kStopping || phase_ == Phase::kKilled});
  }
}

bool Supervisor::advance() {
  const bool over = phase_ != Phase::kRunning && Clock::now() >= deadline_;
  switch (phase_) {
    case Phase::kRunning:
      if (const auto cause = root_cause(outcome_)) {
        if (exited_on_forwarded_signal(*cause)) {
          await_end();
        } else {
          enter(Phase::kSettling, kCauseWindow);
          return true;
        }
      }
      break;
    case Phase::kSettling:
      if (over) {
        stop(SIGTERM, std::min(shutdown_timeout_, kFailureGrace));
      }
      break;
    case Phase::kStopping:
      if (over) {
        kill_all();
      }
      break;
    case Phase::kKilled:
      gave_up_ = over;
      break;
  }
  return false;
}

void Supervisor::enter(Phase phase, milliseconds duration) {
  phase_ = phase;
  deadline_ = Clock::now() + duration;
}

void Supervisor::stop(int signal, milliseconds grace) {
  enter(Phase::kStopping, grace);
  signal_groups(signal);
  signal_groups(SIGCONT); // A stopped worker cannot handle a signal.
}

void Supervisor::kill_all() {
  if (phase_ != Phase::kKilled) {
    enter(Phase::kKilled, kKillGrace);
    outcome_.killed = true;
    signal_groups(SIGKILL);
  }
}

void Supervisor::signal_groups(int signal) const {
  for (const auto& worker : workers_) {
    kill(-worker.pid, signal);
  }
}

bool Supervisor::ended(int rank) const {
  return std::ranges::any_of(outcome_.exits, [&](const WorkerExit& exit) {
    return exit.rank == rank;
  });
}

} // namespace weft::launcher
