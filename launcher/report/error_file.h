#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace weft::launcher {

/// What a failed worker says of itself in TORCHELASTIC_ERROR_FILE.
struct ErrorFile {
  /// Empty: there is no such file, or something else in it.
  std::string message;
  /// Frames of a native crash, one a line; empty if there are none.
  std::string callstack;
  /// Nanoseconds since the epoch; none in files that only know seconds, which
  /// say less than when the exit was seen.
  std::optional<int64_t> time_ns;
};

/// Reads {"message": "..."} or {"message": {"message": "...", "extraInfo":
/// {"py_callstack": "...", "timestamp_ns": "..."}}}.
ErrorFile read_error_file(const std::filesystem::path& path);

} // namespace weft::launcher
