#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::recipes {

// Note [The same tokens on every mesh]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Of the logits only those of the last position are gathered, whole on every
// tensor-parallel rank and in the same bits; there each rank draws the token
// for itself, which needs no message. The random number belongs to (seed,
// sample, position) and to nothing else: not to the mesh, the replica or what
// else is in the batch. Logits of different meshes differ in the last bits of
// float, as sums are added in another order: a token changes only where its
// number falls so close to the border between two.

/// How the next token is chosen; names and meanings of transformers.
struct SamplingOptions {
  /// Logits are divided by it; 0: always the likeliest token.
  double temperature = 1;
  /// Only the so many likeliest tokens; 0: all.
  int64_t top_k = 0;
  /// Only the likeliest tokens that together have this probability.
  double top_p = 1;
  uint64_t seed = 0;
};

/// Logits divided by the temperature, if that is not 0, and -inf where top_k
/// and then top_p leave no chance. Tokens as likely as the last of top_k stay.
/// A temperature so small that float overflows leaves only the likeliest.
/// Shapes: [.., V] to [.., V], float.
/// Source: transformers' TemperatureLogitsWarper, TopKLogitsWarper and
/// TopPLogitsWarper; Holtzman et al., The Curious Case of Neural Text
/// Degeneration (2020).
at::Tensor warp_logits(
    const at::Tensor& logits,
    const SamplingOptions& options);

/// Uniform in [0, 1), 53 bits.
double sampling_number(uint64_t seed, int64_t sample, int64_t position);

/// The token that stands `position` tokens from the start of sample `sample`.
/// Shapes: logits [V], on the CPU.
/// Throws: NonFiniteError if a logit is not a number, or the largest infinite.
int64_t choose_token(
    const at::Tensor& logits,
    const SamplingOptions& options,
    int64_t sample,
    int64_t position);

} // namespace weft::recipes
