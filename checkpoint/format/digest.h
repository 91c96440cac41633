#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weft::checkpoint {

/// Hashes that hold against someone who wants to deceive; XXH3 (hash.h) finds
/// accidents only.
using Sha256 = std::array<std::byte, 32>;

Sha256 sha256(std::span<const std::byte> bytes);
/// `key` has less than 2^31 bytes.
/// Source: RFC 2104 with SHA-256.
Sha256 hmac_sha256(std::string_view key, std::string_view text);
/// In a time that does not depend on where they differ.
bool is_equal(const Sha256& a, const Sha256& b);

/// 64 lower-case hexadecimal digits.
std::string to_hex(const Sha256& digest);
/// Nothing unless `text` is what to_hex() writes.
std::optional<Sha256> sha256_from_hex(std::string_view text);

} // namespace weft::checkpoint
