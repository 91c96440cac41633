#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace weft::base {

/// The cause of a failure, as far as the failing process knows it.
enum class ErrorCause {
  /// None of the others.
  kOther,
  /// The connection to another rank was lost.
  kLostPeer,
  /// A wait for another rank has timed out.
  kTimedOut,
  /// An allocation failed.
  kOutOfMemory
};

/// Returns "other", "lost_peer", "timed_out" or "out_of_memory".
std::string_view to_string(ErrorCause cause);
/// Returns the cause of that name. Empty if there is none.
std::optional<ErrorCause> error_cause_of(std::string_view name);

/// The reason for a process failure, written to the launcher's
/// TORCHELASTIC_ERROR_FILE.
struct ErrorRecord {
  /// The exit code of the process as a shell reports it.
  int code = 0;
  int64_t rank = 0;
  /// Unit: nanoseconds since the epoch.
  int64_t time_ns = 0;
  std::string_view message;
  /// Empty if the process does not know it, as in a crash.
  std::optional<ErrorCause> cause = std::nullopt;
  /// One frame per line, innermost first. May be empty.
  std::string_view callstack;
};

/// Returns the current time for an ErrorRecord. Async-signal-safe.
int64_t error_time_ns();

/// Writes torchrun's error.json, {"message": {"message": ..., "extraInfo":
/// {"py_callstack": ..., "timestamp": seconds, ...}, "errorCode": ...}}, with
/// the time in nanoseconds as "timestamp_ns" and the cause, if it is known, as
/// "cause". The file is replaced atomically.
/// Returns true on success. Async-signal-safe.
/// Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py.
bool write_error_file(const char* path, const ErrorRecord& record);

} // namespace weft::base
