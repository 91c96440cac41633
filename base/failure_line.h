#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/safe_writer.h"

namespace weft::base {

/// The last line of a failed process or run: "ERROR <code> rank=<rank> op=<op>
/// <text>".
struct FailureLine {
  /// The exit code of the process or run.
  int code = 1;
  int64_t rank = 0;
  /// The command or collective that failed.
  std::string op;
  std::string text = {};

  /// Returns the line without an end. Line feeds in `text` become spaces.
  std::string to_string() const;
  /// Parses such a line. Empty if it is none.
  static std::optional<FailureLine> parse(std::string_view line);
};

/// Writes the part of the line before its text. Async-signal-safe.
void write_failure_start(
    SafeWriter& out,
    int code,
    int64_t rank,
    std::string_view op);

} // namespace weft::base
