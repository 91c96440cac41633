#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::mesh {

/// The destination and the rank of a crash report.
struct CrashContext {
  /// The path of the error file. Empty means standard error only.
  std::string error_file;
  int64_t rank = 0;
};

/// Installs the crash handler: a crash of this process (SIGSEGV, SIGBUS,
/// SIGFPE, SIGILL, SIGABRT, an uncaught exception) writes an error file
/// (base/error_report.h) with the signal, the address, the thread, the newest
/// collective and a backtrace, and ends standard error with the line `ERROR
/// <code> rank=<r> op=crash ...`. The process then dies of the signal, or the
/// previous handler runs. An uncaught std::bad_alloc exits with 137. A stack
/// overflow is reported in threads that have called this function,
/// prepare_thread_for_crash() (base/stacks/crash_stack.h) or note_collective();
/// in other threads the kernel ends the process without a report.
/// To be called once, early. Later calls only change the context.
void install_crash_handler(const CrashContext& context);

/// Like install_crash_handler(context), with the launcher's error file
/// (TORCHELASTIC_ERROR_FILE) and rank.
void install_crash_handler();

/// Like install_crash_handler(), for a process started by a launcher
/// (TORCHELASTIC_ERROR_FILE is set), and only for signals without a handler.
/// Does nothing if WEFT_CRASH_HANDLER is 0. World::from_env() calls it. Later
/// calls cost nothing.
void install_crash_handler_of_rank();

/// Records the newest collective for a crash report. Called by flight
/// recorders; takes a few nanoseconds.
void note_collective(
    uint64_t sequence,
    std::string_view op,
    std::string_view name);

/// Returns the newest collective: "all_reduce of layers.0.wq #812". Empty if
/// there is none or if it is being written.
std::string newest_collective();

} // namespace weft::mesh
