#include "train/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/error_report.h"
#include "base/failure_line.h"
#include "base/safe_writer.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

constexpr std::array kStopSignals{SIGTERM, SIGUSR1};

// All state that the handler uses, on any thread.
struct StopState {
  std::atomic<int> signal{0};
  std::atomic<RunPhase> phase{RunPhase::kStarting};
  std::atomic<bool> is_handled{false};
  /// True if a thread ends the process. Other threads wait for that.
  std::atomic<bool> is_ending{false};
  // Written before the handler is installed.
  int64_t rank = 0;
  std::array<char, PATH_MAX> error_file{};
};
StopState stop_state;
static_assert(std::atomic<RunPhase>::is_always_lock_free);

std::string_view name_of_stop(int signal) {
  return signal == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
}

// Async-signal-safe.
void describe_stop(base::SafeWriter& out, int signal) {
  out << name_of_stop(signal)
      << (stop_state.phase == RunPhase::kStarting
              ? " before the first step: nothing was to be saved, and the same "
                "command starts again"
              : " after the last step, which is saved: the same command does "
                "what is left");
}

// Async-signal-safe.
[[noreturn]] void end_process(int signal, bool has_line) {
  if (stop_state.is_ending.exchange(true)) {
    for (;;) {
      pause(); // another thread ends the process
    }
  }
  constexpr int kCode = static_cast<int>(mesh::ExitCode::kPreempted);
  std::array<char, 256> text;
  base::SafeWriter message(text);
  describe_stop(message, signal);
  if (stop_state.error_file[0] != '\0') {
    base::write_error_file(
        stop_state.error_file.data(),
        {.code = kCode,
         .rank = stop_state.rank,
         .time_ns = base::error_time_ns(),
         .message = message.view(),
         .cause = base::ErrorCause::kOther,
         .callstack = ""});
  }
  if (has_line) {
    base::SafeWriter out(STDERR_FILENO);
    base::write_failure_start(out, kCode, stop_state.rank, "train");
    out << message.view() << "\n";
  }
  _exit(kCode);
}

// Returns true if the parent sent the signal. The parent is the launcher, which
// signals all ranks.
bool was_signalled_by_launcher(const siginfo_t& info) {
  return info.si_code == SI_USER && info.si_pid == getppid();
}

void on_stop_signal(int signal, siginfo_t* info, void* /*context*/) {
  int none = 0;
  stop_state.signal.compare_exchange_strong(none, signal);
  if (stop_state.phase != RunPhase::kTraining) {
    end_process(
        signal, stop_state.rank == 0 || !was_signalled_by_launcher(*info));
  }
}

} // namespace

void handle_stop_signals(int64_t rank, const std::string& error_file) {
  if (stop_state.is_handled.exchange(true)) {
    return;
  }
  stop_state.rank = rank;
  const size_t length =
      std::min(error_file.size(), stop_state.error_file.size() - 1);
  std::memcpy(stop_state.error_file.data(), error_file.data(), length);
  struct sigaction action {};
  action.sa_sigaction = on_stop_signal;
  // SA_RESTART continues system calls in progress, such as those of a save.
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kStopSignals) {
    sigaddset(&action.sa_mask, signal);
  }
  for (const int signal : kStopSignals) {
    sigaction(signal, &action, nullptr);
  }
}

void set_run_phase(RunPhase phase) {
  stop_state.phase = phase;
  const int signal = stop_state.signal;
  if (phase == RunPhase::kSaved && signal != 0) {
    // A stop signal on this thread would make it wait for itself in pause().
    sigset_t more;
    sigemptyset(&more);
    for (const int each : kStopSignals) {
      sigaddset(&more, each);
    }
    pthread_sigmask(SIG_BLOCK, &more, nullptr);
    end_process(signal, /*has_line=*/stop_state.rank == 0);
  }
}

void await_stop_signal(std::chrono::milliseconds limit) {
  if (stop_state.is_handled && stop_state.phase != RunPhase::kTraining) {
    std::this_thread::sleep_for(limit);
  }
}

bool is_stop_requested() {
  return stop_state.signal != 0;
}

std::string stop_signal_name() {
  const int signal = stop_state.signal;
  return signal == 0 ? "" : std::string(name_of_stop(signal));
}

} // namespace weft::train
