#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace weft::launcher {

/// Writes to a descriptor that others share, so that it cannot be made
/// non-blocking, without ever waiting for its reader.
class Sink {
 public:
  /// Lifetime: `fd` stays the caller's.
  explicit Sink(int fd);

  /// Writes what can be written now and keeps the rest.
  void push(std::string_view bytes);
  /// Writes more of what is kept. An error such as a reader that has gone
  /// drops it, and all that follows.
  void write_some();

  int fd() const { return fd_; }
  bool pending() const { return !kept_.empty(); }
  /// Whether the last byte that was pushed left a line unfinished.
  bool mid_line() const { return mid_line_; }
  /// Whether so much is kept that sources should wait.
  bool full() const;

 private:
  bool writable() const;

  int fd_;
  size_t piece_;
  bool broken_ = false;
  std::string kept_;
  size_t written_ = 0;
  bool mid_line_ = false;
};

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
