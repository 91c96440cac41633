#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace weft::recipes {

inline constexpr int64_t kMaxYamlBytes = 1 << 20;
inline constexpr int64_t kMaxYamlDepth = 32;
inline constexpr int64_t kMaxYamlNodes = 100'000;

/// A place in a text. Units: lines and bytes of the line, counted from 1; line
/// 0 is no place.
struct Position {
  int64_t line = 0;
  int64_t column = 0;
};

/// The text is not YAML, or not the part of YAML that recipes use.
class YamlError : public std::runtime_error {
 public:
  YamlError(Position where, const std::string& message)
      : std::runtime_error(message), where_(where) {}

  Position where() const { return where_; }

 private:
  Position where_;
};

/// Looks at `text` before a parser does: size, UTF-8, control characters,
/// quotes that stay open, and brackets nested so deep that a parser would spend
/// its time on them.
/// Throws: YamlError.
void scan_yaml(std::string_view text);

} // namespace weft::recipes
