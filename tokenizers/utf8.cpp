#include "tokenizers/utf8.h"

#include <cstring>

namespace weft::tokenizers {
namespace {

size_t valid_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const auto follows = [&](size_t i, unsigned least, unsigned most) {
    return i < text.size() && byte(i) >= least && byte(i) <= most;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xc2 && lead <= 0xdf) {
    return follows(1, 0x80, 0xbf) ? 2 : 0;
  }
  if (lead >= 0xe0 && lead <= 0xef) {
    const unsigned least = lead == 0xe0 ? 0xa0 : 0x80;
    const unsigned most = lead == 0xed ? 0x9f : 0xbf; // excludes surrogates
    return follows(1, least, most) && follows(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const unsigned least = lead == 0xf0 ? 0x90 : 0x80;
    const unsigned most = lead == 0xf4 ? 0x8f : 0xbf;
    return follows(1, least, most) && follows(2, 0x80, 0xbf) &&
                   follows(3, 0x80, 0xbf)
               ? 4
               : 0;
  }
  return 0;
}

} // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t i = 0;
  while (i < text.size()) {
    uint64_t eight = 0;
    if (text.size() - i >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & kHighBits) == 0) {
        i += sizeof(eight);
        continue;
      }
    }
    const size_t length = valid_length(text.substr(i, 4));
    if (length == 0) {
      return i;
    }
    i += length;
  }
  return std::nullopt;
}

char32_t utf8_at(std::string_view text, size_t offset) {
  const auto bits = [&](size_t i, unsigned mask) {
    return static_cast<char32_t>(
        static_cast<unsigned char>(text[offset + i]) & mask);
  };
  switch (utf8_length(text[offset])) {
    case 1:
      return bits(0, 0x7f);
    case 2:
      return bits(0, 0x1f) << 6 | bits(1, 0x3f);
    case 3:
      return bits(0, 0x0f) << 12 | bits(1, 0x3f) << 6 | bits(2, 0x3f);
    default:
      return bits(0, 0x07) << 18 | bits(1, 0x3f) << 12 | bits(2, 0x3f) << 6 |
             bits(3, 0x3f);
  }
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t lead, int shift) {
    text += static_cast<char>(lead | code_point >> shift);
    while (shift > 0) {
      shift -= 6;
      text += static_cast<char>(0x80 | (code_point >> shift & 0x3f));
    }
  };
  if (code_point < 0x80) {
    put(0, 0);
  } else if (code_point < 0x800) {
    put(0xc0, 6);
  } else if (code_point < 0x10000) {
    put(0xe0, 12);
  } else {
    put(0xf0, 18);
  }
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

} // namespace weft::tokenizers
