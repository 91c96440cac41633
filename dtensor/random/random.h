#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// The key of random numbers that depend on the element and not on the rank
/// that holds it: Philox 4x32-10 keyed by `seed`, with a counter made of
/// `stream` and the element's index in the full tensor. The values are bitwise
/// the same for every sharding of a tensor, on the CPU and on CUDA.
/// Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011);
/// ATen/core/PhiloxRNGEngine.h.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

/// Returns a distinct stream for each name.
uint64_t stream_of(std::string_view name);

/// Fills this rank's box of a tensor of `global_sizes` with U[from, to).
/// Shapes: `local` has box.sizes, is contiguous and floating point.
void fill_uniform(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    double from,
    double to);

/// Like fill_uniform(), with N(mean, std^2), by the Box-Muller method.
void fill_normal(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    double mean,
    double std);

/// Like fill_uniform(), with integers from [from, from + range).
/// Shapes: `local` may have any real dtype or bool; range is in [1, 2^32].
void fill_integers(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    int64_t from,
    uint64_t range);

} // namespace weft::dtensor
