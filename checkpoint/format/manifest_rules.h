#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/format/hash.h"
#include "checkpoint/format/manifest.h"

/// How a manifest begins and ends, for who writes and who reads it.

namespace weft::checkpoint {

/// The first rule of the format that `manifest` breaks, as a sentence that
/// names the tensor or file. `state` and `layout` are not looked at.
/// A foreign manifest has no hashes, and its headers need not be padded.
std::optional<std::string> find_violation(const Manifest& manifest);

/// Names the first header or piece that has no SHA-256.
std::optional<std::string> find_missing_sha256(const Manifest& manifest);

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
