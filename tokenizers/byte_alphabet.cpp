#include "tokenizers/byte_alphabet.h"

#include "tokenizers/utf8.h"

namespace weft::tokenizers {
namespace {

constexpr bool is_visible_byte(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
         byte >= 0xae;
}

// Maps the visible characters of Latin-1 to themselves and all other bytes to
// the characters from U+0100 on.
constexpr std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    characters[byte] = is_visible_byte(byte) ? byte : next++;
  }
  return characters;
}

constexpr std::array<char32_t, 256> kAlphabet = make_alphabet();
constexpr char32_t kEnd = 0x144;
static_assert(kAlphabet[0xad] == kEnd - 1);

constexpr std::array<int, kEnd> make_bytes() {
  std::array<int, kEnd> bytes{};
  for (int& byte : bytes) {
    byte = -1;
  }
  for (int byte = 0; byte < 256; ++byte) {
    bytes[kAlphabet[static_cast<size_t>(byte)]] = byte;
  }
  return bytes;
}

constexpr std::array<int, kEnd> kByteOf = make_bytes();

} // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  return kAlphabet;
}

std::optional<std::string> decode_byte_level(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    const char32_t character = utf8_at(text, i);
    if (character >= kEnd || kByteOf[character] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kByteOf[character]);
  }
  return bytes;
}

} // namespace weft::tokenizers
