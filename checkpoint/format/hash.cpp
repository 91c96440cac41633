#include "checkpoint/format/hash.h"

// Compiled in: no library to link, and at full speed for short pieces.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

namespace weft::checkpoint {

uint64_t hash(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t hash(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

std::string to_hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::optional<uint64_t> from_hex(std::string_view text) {
  if (text.size() != kHexDigits) {
    return std::nullopt;
  }
  uint64_t value = 0;
  for (const char c : text) {
    // Not isxdigit: "A" for "a" would be a change that goes unnoticed.
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

} // namespace weft::checkpoint
