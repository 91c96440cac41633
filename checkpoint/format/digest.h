#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weft::checkpoint {

/// A cryptographic hash, which detects deliberate changes. XXH3 (hash.h)
/// detects only accidental ones.
using Sha256 = std::array<std::byte, 32>;

Sha256 sha256(std::span<const std::byte> bytes);
/// Returns the HMAC of `text`. `key` must have less than 2^31 bytes.
/// Source: RFC 2104 with SHA-256.
Sha256 hmac_sha256(std::string_view key, std::string_view text);
/// Compares two hashes in constant time.
bool is_equal(const Sha256& a, const Sha256& b);

/// Returns the hash as 64 lower-case hexadecimal digits.
std::string to_hex(const Sha256& digest);
/// Parses the result of to_hex(). Returns nullopt for any other text.
std::optional<Sha256> sha256_from_hex(std::string_view text);

} // namespace weft::checkpoint
