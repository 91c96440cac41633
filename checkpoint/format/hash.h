#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weft::checkpoint {

/// Returns the 64-bit XXH3 hash with seed 0.
uint64_t hash(std::span<const std::byte> bytes);
uint64_t hash(std::string_view text);

constexpr size_t kHexDigits = 16;

/// Returns the hash as 16 lower-case hexadecimal digits.
std::string to_hex(uint64_t value);
/// Parses the result of to_hex(). Returns nullopt for any other text.
std::optional<uint64_t> from_hex(std::string_view text);

} // namespace weft::checkpoint
