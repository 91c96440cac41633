#include "base/safe_writer.h"

#include <cerrno>

#include <unistd.h>

namespace weft::base {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

unsigned char byte_at(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

/// Returns the length in bytes of the UTF-8 character at the beginning of
/// `text`, or 0 if there is none. JSON readers refuse a file with a single
/// invalid byte.
size_t utf8_length(std::string_view text) {
  const unsigned char first = byte_at(text, 0);
  const unsigned char second = byte_at(text, 1);
  if (first < 0x80) {
    return 1;
  }
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte_at(text, i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  const bool forbidden = // an overlong form, a surrogate, or too large
      (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return forbidden ? 0 : length;
}

} // namespace

SafeWriter& SafeWriter::operator<<(std::string_view text) {
  if (in_string_) {
    put_escaped(text);
  } else {
    for (const char byte : text) {
      put(byte);
    }
  }
  return *this;
}

SafeWriter& SafeWriter::operator<<(Decimal number) {
  std::array<char, 20> digits;
  size_t begin = digits.size();
  uint64_t rest = static_cast<uint64_t>(number.value);
  if (number.value < 0) {
    put('-');
    rest = 0 - rest;
  }
  do {
    digits[--begin] = kDigits[rest % 10];
    rest /= 10;
  } while (rest != 0);
  return *this << std::string_view(&digits[begin], digits.size() - begin);
}

SafeWriter& SafeWriter::operator<<(Hex number) {
  std::array<char, 2 * sizeof(number.value)> digits;
  size_t begin = digits.size();
  uintptr_t rest = number.value;
  do {
    digits[--begin] = kDigits[rest % 16];
    rest /= 16;
  } while (rest != 0);
  return *this << "0x"
               << std::string_view(&digits[begin], digits.size() - begin);
}

SafeWriter& SafeWriter::open_string() {
  put('"');
  in_string_ = true;
  return *this;
}

SafeWriter& SafeWriter::close_string() {
  in_string_ = false;
  put('"');
  return *this;
}

void SafeWriter::flush() {
  if (fd_ < 0) {
    return;
  }
  size_t written = 0;
  while (written < size_) {
    const ssize_t size = write(fd_, &buffer_[written], size_ - written);
    if (size < 0 && errno != EINTR) {
      break;
    }
    written += static_cast<size_t>(size > 0 ? size : 0);
  }
  size_ = 0;
}

void SafeWriter::put(char byte) {
  if (size_ == buffer_.size()) {
    flush();
  }
  if (size_ < buffer_.size()) {
    buffer_[size_++] = byte;
  }
}

void SafeWriter::put_escaped(std::string_view text) {
  while (!text.empty()) {
    const unsigned char byte = byte_at(text, 0);
    const size_t length = utf8_length(text);
    if (byte == '"' || byte == '\\') {
      put('\\');
      put(text[0]);
    } else if (byte == '\n') {
      put('\\');
      put('n');
    } else if (byte < 0x20) {
      for (const char escape : {'\\', 'u', '0', '0'}) {
        put(escape);
      }
      put(kDigits[byte / 16]);
      put(kDigits[byte % 16]);
    } else if (length == 0) {
      put('?');
    } else {
      for (const char part : text.substr(0, length)) {
        put(part);
      }
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

} // namespace weft::base
