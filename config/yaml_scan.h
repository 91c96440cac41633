#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace weft::config {

inline constexpr int64_t kMaxYamlBytes = 1 << 20;
inline constexpr int64_t kMaxYamlDepth = 32;
inline constexpr int64_t kMaxYamlNodes = 100'000;

/// A position in a text.
/// Units: lines, and bytes within the line, counted from 1. Line 0 means no
/// position.
struct Position {
  int64_t line = 0;
  int64_t column = 0;
};

/// Thrown if the text is not YAML, or not in the subset that recipes use.
class YamlError : public std::runtime_error {
 public:
  YamlError(Position where, const std::string& message)
      : std::runtime_error(message), where_(where) {}

  Position where() const { return where_; }

 private:
  Position where_;
};

/// Checks `text` before parsing: size, UTF-8, control characters, unclosed
/// quotes, and nesting that would make the parser slow.
/// Throws: YamlError.
void scan_yaml(std::string_view text);

} // namespace weft::config
