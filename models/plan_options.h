#pragma once

#include <cstdint>

#include "tp/style.h"

namespace weft::recipes {

/// What the plan of a model may depend on beside its config.
struct PlanOptions {
  /// Keep activations between the blocks cut along the sequence.
  bool sequence_parallel = true;
  /// Leave the logits cut along the vocabulary.
  bool loss_parallel = true;
  /// Ranks of the mesh dim.
  int64_t size = 1;

  /// Where the residual stream [B, T, D] lies between blocks.
  tp::Placement stream() const {
    return sequence_parallel ? tp::Shard(1) : tp::Replicate();
  }
  /// Where the logits [B, T, V] lie.
  tp::Placement logits() const {
    return loss_parallel ? tp::Shard(-1) : tp::Replicate();
  }
};

} // namespace weft::recipes
