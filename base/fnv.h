#pragma once

#include <cstdint>
#include <string_view>

namespace weft::base {

inline constexpr uint64_t kFnvBasis = 0xcbf29ce484222325;

/// Adds one unit to an FNV-1a hash.
inline constexpr uint64_t fnv1a(uint64_t hash, uint64_t unit) {
  return (hash ^ unit) * 0x100000001b3;
}

/// Returns the FNV-1a hash of bytes, starting from `hash`. Unlike std::hash it
/// is identical on every host.
/// Source: Fowler, Noll and Vo, draft-eastlake-fnv.
inline constexpr uint64_t fnv1a(
    std::string_view bytes,
    uint64_t hash = kFnvBasis) {
  for (const char c : bytes) {
    hash = fnv1a(hash, static_cast<unsigned char>(c));
  }
  return hash;
}

} // namespace weft::base
