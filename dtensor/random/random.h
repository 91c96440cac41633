#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// Random numbers that depend on the element and not on who holds it: Philox
/// 4x32-10 keyed by `seed`, its counter made of `stream` and the element's
/// index in the whole tensor. Any cut of a tensor gives the same values, and so
/// do the CPU and a CUDA device, bit for bit.
/// Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011);
/// ATen/core/PhiloxRNGEngine.h.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

/// A stream of its own for each name.
uint64_t stream_of(std::string_view name);

/// Fills this rank's box of a tensor of `global_sizes` with U[from, to).
/// Shapes: `local` has box.sizes and is contiguous; floating point.
void fill_uniform(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    double from,
    double to);

/// The same with N(mean, std^2), by Box and Muller's method.
void fill_normal(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    double mean,
    double std);

/// The same with whole numbers from [from, from + range).
/// Shapes: as above, of any real dtype or bool; range in [1, 2^32].
void fill_integers(
    const at::Tensor& local,
    const LocalBox& box,
    c10::IntArrayRef global_sizes,
    RandomKey key,
    int64_t from,
    uint64_t range);

} // namespace weft::dtensor
