#pragma once

#include <cstdint>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

namespace weft::dtensor {

/// What F::cross_entropy's options say, and z_loss.
struct CrossEntropyOptions {
  /// One number a class; undefined: all 1. Cut as the classes are, or whole.
  at::Tensor weight = {};
  /// at::Reduction::None, Mean or Sum.
  int64_t reduction = at::Reduction::Mean;
  /// Rows of this target count nothing.
  int64_t ignore_index = -100;
  double label_smoothing = 0.0;
  /// Every row that counts adds z_loss * logsumexp(logits)^2, whatever its
  /// class weighs: a mean's share of it is that of the rows alone.
  double z_loss = 0.0;
};

/// F::cross_entropy() with a z-loss, of plain tensors or DTensors however they
/// lie. Logits whose classes are cut are never gathered: see
/// Note [Loss parallel]. Half precision is computed and returned in float.
/// Shapes: logits [C], [N, C] or [N, C, d1, ..]; target the same without C
/// (classes), or the same (probabilities).
/// Collective: one all_gather a mesh dim of more than one rank that cuts the
/// classes, of three to six numbers a row; of those that cut rows, one
/// all_reduce for a mean. Backward: none.
/// Throws: c10::ValueError for sizes or options that do not fit,
/// c10::IndexError for a target that is no class (on the CPU).
/// Source: Chowdhery et al., PaLM (2022), section 5; t5x/losses.py.
at::Tensor cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const CrossEntropyOptions& options = {});

} // namespace weft::dtensor
