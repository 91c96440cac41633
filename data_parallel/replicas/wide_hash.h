#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::data_parallel::detail {

/// Computes XXH3 with vectors twice as wide as those of every x86-64 processor,
/// in a source file compiled for them. Null if the processor does not have
/// them. The result is identical.
using WideHash = uint64_t (*)(const void* data, size_t bytes);
WideHash find_wide_hash();

} // namespace weft::data_parallel::detail
