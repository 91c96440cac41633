#pragma once

#include <cstdint>

#include "models/gpt2.h"
#include "models/llama.h"
#include "models/mlp.h"
#include "models/moe.h"
#include "models/vit.h"
#include "tp/parallelize_module.h"
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

/// The tensor-parallel plan of a Llama: q, k, v, gate and up cut by columns, o
/// and down by rows, embedding and head by vocabulary. With sequence
/// parallelism the norms and the residual stream are cut along the sequence;
/// with loss parallelism the logits stay cut by vocabulary. Where the heads of
/// keys and values are no multiple of the ranks, k and v are whole on each.
tp::ParallelizePlan llama_plan(
    const PlanOptions& options,
    const LlamaConfig& config);

/// The tensor-parallel plan of a GPT-2: q, k, v and c_fc cut by columns, both
/// c_proj by rows, the embedding and so the tied head by vocabulary; positions
/// whole on each rank. With sequence parallelism norms, dropout and the
/// residual stream are cut along the sequence.
tp::ParallelizePlan gpt2_plan(
    const PlanOptions& options,
    const Gpt2Config& config);

/// The tensor-parallel plan of a mixture-of-experts Llama: all but the
/// feed-forwards as llama_plan(); experts one after the other on the ranks, the
/// router whole on each. With sequence parallelism each rank routes its part of
/// the sequence, and rows go to their experts by all_to_all.
tp::ParallelizePlan moe_plan(
    const PlanOptions& options,
    const MoeConfig& config);

/// The tensor-parallel plan of a vision transformer: q, k, v and fc1 cut by
/// columns, o and fc2 by rows, the head by classes; the embeddings, which are
/// small, whole on each rank. With sequence parallelism norms, dropout and the
/// residual stream are cut along patches and class token, evenly or not, and
/// gathered once before the class token is taken.
tp::ParallelizePlan vit_plan(
    const PlanOptions& options,
    const VitConfig& config);

/// The tensor-parallel plan of an MLP: layers cut by columns and by rows in
/// turn, so that every second hidden layer is cut and none is gathered.
tp::ParallelizePlan mlp_plan(
    const PlanOptions& options,
    const MlpConfig& config);

} // namespace weft::recipes
