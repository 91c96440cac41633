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

/// words[4 * i + lane], as philox() gives them.
void word_blocks(
    uint64_t seed,
    uint64_t stream,
    uint64_t first,
    uint32_t* words);

/// first[i], second[i]: two words each of the block blocks[i], the lower word
/// lowest.
void bits_of_blocks(
    uint64_t seed,
    uint64_t stream,
    const uint64_t* blocks,
    uint64_t* first,
    uint64_t* second);

/// logs[i] = log(x[i]) for normal numbers x[i] > 0 and i < kBlocksAtOnce; to
/// 1e-12 of it.
void vector_logs(const double* x, double* logs);

} // namespace weft::dtensor
