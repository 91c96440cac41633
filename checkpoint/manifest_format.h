#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/hash.h"

/// How a manifest begins and ends, for who writes and who reads it.
namespace weft::checkpoint {

constexpr std::string_view kFormatName = "weft.checkpoint";
constexpr int64_t kFormatVersion = 1;
constexpr std::string_view kHashBefore = "\"xxh3\": \"";
constexpr std::string_view kHashDigits = "0000000000000000";
constexpr std::string_view kHashAfter = "\"\n}\n";

/// Where the digits of the manifest's own hash stand, if it ends with one.
inline size_t hash_position(std::string_view text) {
  return text.size() - kHashAfter.size() - kHexDigits;
}

} // namespace weft::checkpoint
