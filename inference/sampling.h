#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::inference {

// Note [The same tokens on every mesh]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Of the logits only those of the last position are gathered, whole on every
// tensor-parallel rank and in the same bits; there each rank draws the token
// for itself, which needs no message. The random number belongs to (seed,
// sample, position) and to nothing else: not to the mesh, the replica or what
// else is in the batch. Logits of different meshes differ in the last bits of
// float, as sums are added in another order: a token changes only where its
// number falls so close to the border between two.

/// The options of sampling, with the names and semantics of transformers.
struct SamplingOptions {
  /// The divisor of the logits. 0 selects the most likely token.
  double temperature = 1;
  /// Considers only this number of most likely tokens. 0 means all.
  int64_t top_k = 0;
  /// Considers only the most likely tokens with this total probability.
  double top_p = 1;
  uint64_t seed = 0;
};

/// Returns the logits divided by the temperature, unless that is 0, with -inf
/// for tokens removed by top_k and then top_p. Ties with the last token of
/// top_k are kept. A temperature so small that float overflows keeps only the
/// most likely tokens.
/// Shapes: [.., V] to [.., V], float.
/// Source: transformers' TemperatureLogitsWarper, TopKLogitsWarper and
/// TopPLogitsWarper; Holtzman et al., The Curious Case of Neural Text
/// Degeneration (2020).
at::Tensor warp_logits(
    const at::Tensor& logits,
    const SamplingOptions& options);

/// Returns a uniform number in [0, 1) with 53 bits.
double sampling_number(uint64_t seed, int64_t sample, int64_t position);

/// Chooses the token at `position` of sample `sample`.
/// Shapes: logits [V], on the CPU.
/// Throws: NonFiniteError if a logit is NaN or the largest one is infinite.
int64_t choose_token(
    const at::Tensor& logits,
    const SamplingOptions& options,
    int64_t sample,
    int64_t position);

} // namespace weft::inference
