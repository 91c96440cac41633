#pragma once

#include <cstdint>
#include <string_view>

namespace weft::base {

/// Why a process fails, for the file that its launcher names in
/// TORCHELASTIC_ERROR_FILE.
struct ErrorRecord {
  /// The process's exit code, as a shell gives it.
  int code = 0;
  int64_t rank = 0;
  /// Units: nanoseconds since the epoch.
  int64_t time_ns = 0;
  std::string_view message;
  /// One frame a line, the innermost first; may be empty.
  std::string_view callstack;
};

/// Now, as an ErrorRecord has it. Async-signal-safe.
int64_t error_time_ns();

/// Writes torchrun's error.json, {"message": {"message": ..., "extraInfo":
/// {"py_callstack": ..., "timestamp": seconds, ...}, "errorCode": ...}}, with
/// the time in nanoseconds as "timestamp_ns". Readers see all of it or what was
/// there before. Says whether it could. Async-signal-safe.
/// Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py.
bool write_error_file(const char* path, const ErrorRecord& record);

} // namespace weft::base
