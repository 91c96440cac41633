#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace weft::base {

/// A number as SafeWriter prints it.
struct Decimal {
  int64_t value = 0;
};
struct Hex {
  uintptr_t value = 0;
};

/// Builds a string. Async-signal-safe: it uses no heap, no locks and no locale.
class SafeWriter {
 public:
  /// Writes to a file descriptor. Data that cannot be written is lost.
  explicit SafeWriter(int fd) : fd_(fd), buffer_(own_buffer_) {}
  /// Writes to memory. Text that does not fit is cut.
  explicit SafeWriter(std::span<char> memory) : buffer_(memory) {}
  ~SafeWriter() { flush(); }
  SafeWriter(const SafeWriter&) = delete;
  SafeWriter& operator=(const SafeWriter&) = delete;

  SafeWriter& operator<<(std::string_view text);
  SafeWriter& operator<<(Decimal number);
  SafeWriter& operator<<(Hex number);

  /// Encloses text that is written as a JSON string, with any bytes escaped.
  SafeWriter& open_string();
  SafeWriter& close_string();

  void flush();
  /// Returns the text written to memory.
  std::string_view view() const { return {buffer_.data(), size_}; }

 private:
  void put(char byte);
  void put_escaped(std::string_view text);

  int fd_ = -1;
  bool in_string_ = false;
  size_t size_ = 0;
  std::array<char, 1024> own_buffer_{};
  std::span<char> buffer_;
};

} // namespace weft::base
