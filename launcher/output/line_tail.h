#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace weft::launcher {

/// Keeps the last lines of a stream, and its last line of the form `ERROR
/// <code> rank=...`.
class LineTail {
 public:
  static constexpr size_t kLines = 10;
  /// The limit for one line. Longer lines are truncated.
  static constexpr size_t kLineBytes = 8192;

  void append(std::string_view bytes);

  /// Returns the lines, oldest first, without text that a carriage return has
  /// overwritten and without empty lines at the end.
  std::vector<std::string> lines() const;
  /// Returns the last `ERROR <code> rank=` line with this code, unchanged.
  /// Empty if there is none.
  std::string error_line(int code) const;

 private:
  void end_line();

  std::deque<std::string> lines_;
  std::string line_;
  std::string error_line_;
};

} // namespace weft::launcher
