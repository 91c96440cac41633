#pragma once

#include <cstdint>

namespace weft::dtensor {

/// The number of blocks that the vectorized functions compute at once. They
/// return bitwise the same numbers as philox(), uniform_block() and
/// normal_block() of random_arithmetic.h.
inline constexpr int64_t kBlocksAtOnce = 64;

/// Computes numbers[4 * i + lane] for the blocks first + i, i < kBlocksAtOnce.
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

/// Computes words[4 * i + lane] like philox().
void word_blocks(
    uint64_t seed,
    uint64_t stream,
    uint64_t first,
    uint32_t* words);

/// Computes first[i] and second[i], the two pairs of words of block blocks[i],
/// with the lower word in the lower bits.
void bits_of_blocks(
    uint64_t seed,
    uint64_t stream,
    const uint64_t* blocks,
    uint64_t* first,
    uint64_t* second);

/// Computes logs[i] = log(x[i]) for normal numbers x[i] > 0 and i <
/// kBlocksAtOnce, with a relative error of at most 1e-12.
void vector_logs(const double* x, double* logs);

} // namespace weft::dtensor
