#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "dtensor/random/random.h"

namespace weft::dtensor {

// Numbers of other distributions than fill_uniform()'s and fill_normal()'s:
// each element's from (key, its index in the full tensor) alone, as many as
// its distribution wants, so that any shard of a tensor gives the same values.
// They use the C library's logarithm: equal on one kind of machine.
//
// Shapes: `indices` is int64 on the CPU, contiguous, of any sizes; see
// RandomPart::indices(). Results have its sizes, on the CPU. Parameters that
// are tensors have its sizes too, are contiguous and of doubles.

/// Draws doubles from U(0, 1), never 0 or 1.
at::Tensor sample_uniform(const at::Tensor& indices, RandomKey key);
/// Returns the doubles that fill_uniform() and fill_normal() round to a dtype.
at::Tensor sample_filled_uniform(
    const at::Tensor& indices,
    RandomKey key,
    double from,
    double to);
at::Tensor sample_filled_normal(
    const at::Tensor& indices,
    RandomKey key,
    double mean,
    double std);
/// Draws int64 from [from, from + range); `range` 0 means 2^64. Equal to
/// fill_integers() up to a range of 2^32.
at::Tensor sample_integers(
    const at::Tensor& indices,
    RandomKey key,
    int64_t from,
    uint64_t range);
/// Draws doubles of density lambda exp(-lambda x), never 0.
at::Tensor
sample_exponential(const at::Tensor& indices, RandomKey key, double lambda);
/// Draws doubles 1, 2, ...: the number of trials up to the first success of
/// probability `p`.
at::Tensor sample_geometric(const at::Tensor& indices, RandomKey key, double p);
at::Tensor sample_cauchy(
    const at::Tensor& indices,
    RandomKey key,
    double median,
    double sigma);
/// Draws doubles exp(N(mean, std^2)).
at::Tensor sample_log_normal(
    const at::Tensor& indices,
    RandomKey key,
    double mean,
    double std);

/// Draws from the Poisson distribution.
/// Source: Knuth, TAOCP 3.4.1; Hoermann, The transformed rejection method for
/// generating Poisson random variables (1993), algorithm PTRS.
at::Tensor sample_poisson(
    const at::Tensor& indices,
    RandomKey key,
    const at::Tensor& rate);
/// Draws from the binomial distribution.
/// Source: inversion; Hoermann, The generation of binomial random variates
/// (1993), algorithm BTRS.
at::Tensor sample_binomial(
    const at::Tensor& indices,
    RandomKey key,
    const at::Tensor& count,
    const at::Tensor& probability);
/// Draws from Gamma(alpha, 1).
/// Source: Marsaglia and Tsang, A simple method for generating gamma variables
/// (2000).
at::Tensor
sample_gamma(const at::Tensor& indices, RandomKey key, const at::Tensor& alpha);

} // namespace weft::dtensor
