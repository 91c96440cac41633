#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::recipes {

/// Where the first byte lies that is not part of a character in UTF-8 (overlong
/// forms, surrogates and what is beyond U+10FFFF are none).
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// Bytes of the character that begins with `lead`, in valid UTF-8.
constexpr size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// The code point of the character at `offset`, in valid UTF-8.
char32_t utf8_at(std::string_view text, size_t offset);

void append_utf8(std::string& text, char32_t code_point);

/// Whether Unicode calls it White_Space.
bool is_white_space(char32_t code_point);

} // namespace weft::recipes
