#pragma once

#include <cstdint>

namespace weft::dtensor {

/// Blocks of random numbers made at once: bit for bit what philox(),
/// uniform_block() and normal_block() of random_arithmetic.h give one at a
/// time, in the processor's vectors.
inline constexpr int64_t kBlocksAtOnce = 64;

/// numbers[4 * i + lane] for the blocks first + i, i < kBlocksAtOnce.
void uniform_blocks(
    uint64_t seed,
    uint64_t stream,
    uint64_t first,
    float* numbers);
void normal_blocks(
    uint64_t seed,
    uint64_t stream,
    uint64_t first,
    float* numbers);

/// bits[i]: the first two words of the block blocks[i], the first one lowest.
void first_bits_of_blocks(
    uint64_t seed,
    uint64_t stream,
    const uint64_t* blocks,
    uint64_t* bits);

} // namespace weft::dtensor
