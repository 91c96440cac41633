#pragma once

#include <cstdint>
#include <string>

#include <c10/util/Exception.h>

namespace weft::recipes {

/// A run was told to end and has ended after a step: the same command goes on.
class PreemptedError : public c10::Error {
  using c10::Error::Error;
};

/// How far a run is, which decides what SIGTERM and SIGUSR1 do.
enum class RunPhase {
  /// Nothing is to be saved yet: the process ends at once, with exit code 143
  /// and the last line that says so. Where its launcher has told it, and so all
  /// ranks, only rank 0 has that line.
  kStarting,
  /// The signal is remembered, and the run ends by itself.
  kTraining,
  /// All is saved, and what is left can be done again: ends at once as above.
  kSaved,
};

/// From now on, until the process ends, SIGTERM and SIGUSR1 do what RunPhase
/// says, on whatever thread they arrive; more of them change nothing.
/// `error_file` (may be empty) is the launcher's, see base/error_report.h.
void handle_stop_signals(int64_t rank, const std::string& error_file);

/// kStarting to begin with. Once kSaved, a signal that was remembered ends the
/// process.
void set_run_phase(RunPhase phase);

/// Whether one of the signals has come.
bool is_stop_requested();
/// "SIGTERM" or "SIGUSR1", the first that came; empty: none has.
std::string stop_signal_name();

} // namespace weft::recipes
