#pragma once

#include <cstdint>

#include "models/gpt2.h"
#include "models/llama.h"
#include "models/mlp.h"
#include "models/moe.h"
#include "models/vit.h"
#include "tp/parallelize_module.h"
#include "tp/style.h"

namespace weft::models {

/// The inputs of a model's plan other than its config.
struct PlanOptions {
  /// Shards the activations between blocks along the sequence.
  bool sequence_parallel = true;
  /// Keeps the logits sharded along the vocabulary.
  bool loss_parallel = true;
  /// The size of the mesh dim.
  int64_t size = 1;

  /// Returns the placement of the residual stream [B, T, D] between blocks.
  tp::Placement stream() const {
    return sequence_parallel ? tp::Shard(1) : tp::Replicate();
  }
  /// Returns the placement of the logits [B, T, V].
  tp::Placement logits() const {
    return loss_parallel ? tp::Shard(-1) : tp::Replicate();
  }
};

/// Returns the tensor-parallel plan of a Llama. q, k, v, gate_proj and up_proj
/// are column-parallel, o and down_proj row-parallel; the embedding and the
/// head are sharded by vocabulary. With sequence parallelism, the norms and the
/// residual stream are sharded along the sequence. With loss parallelism, the
/// logits stay sharded by vocabulary. If the number of key and value heads is
/// not a multiple of the number of ranks, k and v are replicated.
tp::ParallelizePlan llama_plan(
    const PlanOptions& options,
    const LlamaConfig& config);

/// Returns the tensor-parallel plan of a GPT-2. q, k, v and c_fc are
/// column-parallel and both c_proj row-parallel. The embedding, and so the tied
/// head, is sharded by vocabulary; position embeddings are replicated. With
/// sequence parallelism, the norms, dropout and the residual stream are sharded
/// along the sequence.
tp::ParallelizePlan gpt2_plan(
    const PlanOptions& options,
    const Gpt2Config& config);

/// Returns the tensor-parallel plan of a mixture-of-experts Llama. Everything
/// except the feed-forwards is like llama_plan(). The experts are distributed
/// over the ranks in order, and the router is replicated. With sequence
/// parallelism, each rank routes its part of the sequence, and all_to_all sends
/// rows to their experts.
tp::ParallelizePlan moe_plan(
    const PlanOptions& options,
    const MoeConfig& config);

/// Returns the tensor-parallel plan of a vision transformer. q, k, v and fc1
/// are column-parallel, o and fc2 row-parallel; the head is sharded by classes.
/// The embeddings, which are small, are replicated. With sequence parallelism,
/// the norms, dropout and the residual stream are sharded along patches and
/// class token, evenly or not, and gathered once before the class token is
/// selected.
tp::ParallelizePlan vit_plan(
    const PlanOptions& options,
    const VitConfig& config);

/// Returns the tensor-parallel plan of an MLP. Its layers are alternately
/// column-parallel and row-parallel, so that every second hidden layer is
/// sharded and none is gathered.
tp::ParallelizePlan mlp_plan(
    const PlanOptions& options,
    const MlpConfig& config);

} // namespace weft::models
