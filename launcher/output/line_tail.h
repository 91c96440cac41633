#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace weft::launcher {

/// Remembers the last lines of a stream, and its last line of the form
/// `ERROR <code> rank=...`.
class LineTail {
 public:
  static constexpr size_t kLines = 10;
  /// Longer lines are cut.
  static constexpr size_t kLineBytes = 8192;

  void append(std::string_view bytes);

  /// Oldest first; what a carriage return has overwritten is left out, and so
  /// are empty lines at the end.
  std::vector<std::string> lines() const;
  /// The last `ERROR <code> rank=` line with this code, as it was written, or
  /// an empty string.
  std::string error_line(int code) const;

 private:
  void end_line();

  std::deque<std::string> lines_;
  std::string line_;
  std::string error_line_;
};

} // namespace weft::launcher
