#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace weft::launcher {

/// Makes lines of bytes that come in pieces.
class LineBuffer {
 public:
  /// Gets a line with its newline.
  using OnLine = std::function<void(std::string_view line)>;

  /// A line longer than `max_bytes` is cut: no line is worth more memory.
  explicit LineBuffer(size_t max_bytes) : max_bytes_(max_bytes) {}

  void append(std::string_view bytes, const OnLine& on_line);
  /// What is left, if anything, becomes a line.
  void finish(const OnLine& on_line);

 private:
  size_t max_bytes_;
  std::string unfinished_;
};

} // namespace weft::launcher
