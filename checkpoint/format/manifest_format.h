#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/format/hash.h"

/// How a manifest begins and ends, for who writes and who reads it.
namespace weft::checkpoint {

constexpr std::string_view kFormatName = "weft.checkpoint";
constexpr int64_t kFormatVersion = 1;
constexpr std::string_view kHashBefore = "\"xxh3\": \"";
constexpr std::string_view kHashDigits = "0000000000000000";
constexpr std::string_view kHashAfter = "\"\n}\n";
/// Only where there is a key, and right before kHashBefore.
constexpr std::string_view kHmacBefore = "\"hmac_sha256\": \"";
constexpr std::string_view kHmacDigits =
    "0000000000000000000000000000000000000000000000000000000000000000";
constexpr std::string_view kHmacAfter = "\",\n";

/// Where the digits of the manifest's own hash stand, if it ends with one.
inline size_t hash_position(std::string_view text) {
  return text.size() - kHashAfter.size() - kHexDigits;
}

/// The same for the HMAC's digits; npos if there is none.
inline size_t hmac_position(std::string_view text) {
  const auto behind = kHashBefore.size() + kHexDigits + kHashAfter.size();
  const auto all = kHmacBefore.size() + kHmacDigits.size() + kHmacAfter.size();
  if (text.size() < all + behind) {
    return std::string_view::npos;
  }
  const auto member = text.substr(text.size() - behind - all, all);
  return member.starts_with(kHmacBefore) && member.ends_with(kHmacAfter)
             ? text.size() - behind - all + kHmacBefore.size()
             : std::string_view::npos;
}

} // namespace weft::checkpoint
