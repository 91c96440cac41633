#pragma once

#include <cstdint>
#include <string_view>

namespace weft::base {

/// The reason for a process failure, written to the launcher's
/// TORCHELASTIC_ERROR_FILE.
struct ErrorRecord {
  /// The exit code of the process as a shell reports it.
  int code = 0;
  int64_t rank = 0;
  /// Unit: nanoseconds since the epoch.
  int64_t time_ns = 0;
  std::string_view message;
  /// One frame per line, innermost first. May be empty.
  std::string_view callstack;
};

/// Returns the current time for an ErrorRecord. Async-signal-safe.
int64_t error_time_ns();

/// Writes torchrun's error.json, {"message": {"message": ..., "extraInfo":
/// {"py_callstack": ..., "timestamp": seconds, ...}, "errorCode": ...}}, with
/// the time in nanoseconds as "timestamp_ns". The file is replaced atomically.
/// Returns true on success. Async-signal-safe.
/// Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py.
bool write_error_file(const char* path, const ErrorRecord& record);

} // namespace weft::base
