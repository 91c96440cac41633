#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/format/hash.h"
#include "checkpoint/format/manifest.h"

/// The start and the end of a manifest's text, shared by the writer and the
/// parser.

namespace weft::checkpoint {

/// Returns the first rule of the format that `manifest` violates, as a sentence
/// with the tensor or file. Ignores `state` and `layout`. If has_no_hashes is
/// set, hashes are not required and headers need not be padded.
std::optional<std::string> find_violation(const Manifest& manifest);

/// Returns a sentence with the first header or piece without a SHA-256. Empty
/// if there is none.
std::optional<std::string> find_missing_sha256(const Manifest& manifest);

constexpr std::string_view kFormatName = "weft.checkpoint";
constexpr int64_t kFormatVersion = 1;
constexpr std::string_view kHashBefore = "\"xxh3\": \"";
constexpr std::string_view kHashDigits = "0000000000000000";
constexpr std::string_view kHashAfter = "\"\n}\n";
/// The start of the HMAC member. Present only with a key, directly before
/// kHashBefore.
constexpr std::string_view kHmacBefore = "\"hmac_sha256\": \"";
constexpr std::string_view kHmacDigits =
    "0000000000000000000000000000000000000000000000000000000000000000";
constexpr std::string_view kHmacAfter = "\",\n";

/// Returns the position of the digits of the manifest's own hash, if the text
/// ends with one.
inline size_t hash_position(std::string_view text) {
  return text.size() - kHashAfter.size() - kHexDigits;
}

/// Returns the position of the HMAC's digits, or npos if there is no HMAC.
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
