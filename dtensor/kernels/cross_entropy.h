#pragma once

#include <cstdint>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// The options of F::cross_entropy, and z_loss.
struct CrossEntropyOptions {
  /// One weight per class. Undefined means all 1. Sharded like the classes, or
  /// replicated.
  at::Tensor weight = {};
  /// at::Reduction::None, Mean or Sum.
  int64_t reduction = at::Reduction::Mean;
  /// Rows with this target are ignored.
  int64_t ignore_index = -100;
  /// The weight of the uniform distribution in the targets, in [0, 1].
  double label_smoothing = 0.0;
  /// Adds z_loss * logsumexp(logits)^2 for every row that is not ignored,
  /// independent of the weight of its class. A mean divides it by the number of
  /// rows.
  double z_loss = 0.0;
};

/// Computes F::cross_entropy() with a z-loss, for plain tensors or DTensors
/// with any placements. Logits with sharded classes are never gathered: see
/// Note [Loss parallel]. Half precision is computed and returned in float.
/// Shapes: logits [C], [N, C] or [N, C, d1, ..]; target the same without C
/// (classes), or the same (probabilities).
/// Collective: one all_gather of 3 to 6 numbers per row for each mesh dim of
/// more than one rank that shards the classes; one all_reduce for a mean over
/// each mesh dim that shards rows. Backward does not communicate.
/// Throws: c10::ValueError for sizes or options that do not match,
/// c10::IndexError for a target that is not a class (on the CPU).
/// Source: Chowdhery et al., PaLM (2022), section 5; t5x/losses.py.
at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const CrossEntropyOptions& options = {});

} // namespace weft::dtensor
