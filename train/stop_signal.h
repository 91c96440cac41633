#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/Exception.h>

namespace weft::train {

/// Thrown if a run was preempted and has stopped after a step. The same command
/// resumes it.
class PreemptedError : public c10::Error {
  using c10::Error::Error;
};

/// The phase of a run, which determines the effect of SIGTERM and SIGUSR1.
enum class RunPhase {
  /// Nothing has to be saved yet. A signal ends the process at once with exit
  /// code 143 and a last line with the reason. If the launcher sent the signal,
  /// and therefore to all ranks, only rank 0 prints that line.
  kStarting,
  /// The signal is recorded, and the run stops after the current step.
  kTraining,
  /// Everything is saved, and the remaining work can be repeated. A signal ends
  /// the process at once like in kStarting.
  kSaved,
};

/// Installs handlers that give SIGTERM and SIGUSR1 the effect of RunPhase until
/// the process ends, in any thread. Further signals have no effect.
/// `error_file` is the launcher's error file (base/error_report.h) and may be
/// empty.
void handle_stop_signals(int64_t rank, const std::string& error_file);

/// Sets the phase, which is kStarting at first. On kSaved, a recorded signal
/// ends the process.
void set_run_phase(RunPhase phase);

/// Waits until `limit` for a signal, if it ends the process in this phase.
void await_stop_signal(std::chrono::milliseconds limit);

/// Returns true if one of the signals has arrived.
bool is_stop_requested();
/// Returns "SIGTERM" or "SIGUSR1", whichever arrived first. Empty if none has.
std::string stop_signal_name();

} // namespace weft::train
