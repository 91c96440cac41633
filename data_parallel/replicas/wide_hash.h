#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::ddp::detail {

/// XXH3 with vectors twice as wide as every x86-64 has, in a source of its own
/// that is compiled for them; null where they are not there. The same hash.
using WideHash = uint64_t (*)(const void* data, size_t bytes);
WideHash find_wide_hash();

} // namespace weft::ddp::detail
