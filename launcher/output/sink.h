#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace weft::launcher {

/// Writes without blocking to a descriptor that other processes share, so that
/// O_NONBLOCK cannot be set on it.
class Sink {
 public:
  /// Lifetime: the caller keeps `fd` and closes it.
  explicit Sink(int fd);

  /// Writes what can be written now, and buffers the rest.
  void push(std::string_view bytes);
  /// Writes more of the buffer. An error, such as a closed pipe, discards the
  /// buffer and all later data.
  void write_some();

  int fd() const { return fd_; }
  bool pending() const { return !kept_.empty(); }
  /// Returns true if the data so far ends inside of a line.
  bool mid_line() const { return mid_line_; }
  /// Returns true if so much is buffered that sources should wait.
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

/// Splits a stream of bytes into lines.
class LineBuffer {
 public:
  /// Called with a line that includes its newline.
  using OnLine = std::function<void(std::string_view line)>;

  /// A line longer than `max_bytes` is split, to limit memory use.
  explicit LineBuffer(size_t max_bytes) : max_bytes_(max_bytes) {}

  void append(std::string_view bytes, const OnLine& on_line);
  /// Emits the incomplete last line, if there is one.
  void finish(const OnLine& on_line);

 private:
  size_t max_bytes_;
  std::string unfinished_;
};

} // namespace weft::launcher
