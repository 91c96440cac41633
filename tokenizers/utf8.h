#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::tokenizers {

/// Returns the offset of the first byte that is not part of a character in
/// UTF-8. Overlong forms, surrogates and code points beyond U+10FFFF are not
/// characters. nullopt means that the text is valid.
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// Returns the number of bytes of the character with the first byte `lead`, in
/// valid UTF-8.
constexpr size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

/// Returns the code point of the character at `offset`, in valid UTF-8.
char32_t utf8_at(std::string_view text, size_t offset);

void append_utf8(std::string& text, char32_t code_point);

/// Returns true if the character has Unicode's property White_Space.
bool is_white_space(char32_t code_point);

} // namespace weft::tokenizers
