#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error_report.h"

namespace weft::launcher {

/// The contents of TORCHELASTIC_ERROR_FILE, as written by a failed worker.
struct ErrorFile {
  /// The message. Empty if the file does not exist or is not an error file.
  std::string message;
  /// The frames of a native crash, one per line. Empty if there are none.
  std::string callstack;
  /// The time in nanoseconds since the epoch. Not set if the file has only
  /// seconds, which are less precise than the time at which the exit was
  /// detected.
  std::optional<int64_t> time_ns;
  /// The cause, as far as the worker knows it. Not set by other programs than
  /// Weft, and in crashes.
  std::optional<base::ErrorCause> cause;
};

/// Reads {"message": "..."} or {"message": {"message": "...", "extraInfo":
/// {"py_callstack": "...", "timestamp_ns": "...", "cause": "..."}}}.
ErrorFile read_error_file(const std::filesystem::path& path);

} // namespace weft::launcher
