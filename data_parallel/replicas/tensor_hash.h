#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::ddp {

/// XXH3, 64 bits, seed 0: the same on every host, which std::hash need not be.
int64_t hash_of(const void* data, size_t bytes);

/// A hash of the bits of this rank's part of a tensor: of two parts of one
/// size and dtype that differ, all but one pair in 2^64 have different ones.
/// What lies on a device is summed there first, blocks of 4 KiB onto 16 KiB,
/// and only the sums come to the host: a changed element always changes them,
/// and so do two elements or blocks that change places; two other changes may
/// cancel out.
int64_t hash_of_bits(const at::Tensor& tensor);

namespace detail {
/// Those sums, as bytes; wherever the dense tensor lies.
at::Tensor sum_of_blocks(const at::Tensor& dense);
} // namespace detail

} // namespace weft::ddp
