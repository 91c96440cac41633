#include "checkpoint/format/hash.h"

// Compiles xxHash into this file, so that no library is linked and short inputs
// are hashed fast.
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
    // isxdigit() would accept "A" for "a", and such a change of a file would
    // stay undetected.
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
