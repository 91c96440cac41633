#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace weft::launcher {

/// 256 bits: a key, a nonce, a digest or a message authentication code.
using Bits256 = std::array<char, 32>;

/// Returns bits from the kernel's random number generator.
/// Throws: LaunchError if it fails.
Bits256 random_bits();

Bits256 sha256(std::string_view text);
Bits256 hmac_sha256(std::string_view key, std::string_view text);

/// Compares in constant time.
bool is_equal(std::string_view a, std::string_view b);

inline std::string_view view(const Bits256& bits) {
  return {bits.data(), bits.size()};
}

std::string to_hex(const Bits256& bits);
/// Parses 64 hexadecimal digits. Returns false if `text` is anything else.
bool from_hex(std::string_view text, Bits256& bits);

} // namespace weft::launcher
