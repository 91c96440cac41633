#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::data_parallel {

/// Returns the 64-bit XXH3 hash with seed 0, which unlike std::hash is
/// identical on every host.
int64_t hash_of(const void* data, size_t bytes);

/// Hashes the bits of this rank's local tensor. Two different local tensors of
/// equal size and dtype have different hashes, except for one pair in 2^64. On
/// a device, blocks of 4 KiB are first summed onto 16 KiB there, and only the
/// sums are copied to the host: one changed element always changes them, and so
/// do two swapped elements or blocks; two other changes may cancel.
int64_t hash_of_bits(const at::Tensor& tensor);

namespace detail {
/// Returns those sums as bytes, for a dense tensor on any device.
at::Tensor sum_of_blocks(const at::Tensor& dense);
} // namespace detail

} // namespace weft::data_parallel
