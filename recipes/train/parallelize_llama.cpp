#include "recipes/train/parallelize_llama.h"

namespace weft::recipes {

tp::ParallelizePlan llama_plan(const TpConfig& config, bool tie_embeddings) {
  using namespace tp;
  // Where the residual stream lies between blocks.
  const auto stream = config.sequence_parallel ? Shard(1) : Replicate();
  const auto columns = ColwiseParallel({.input_layouts = stream});
  const auto rows = RowwiseParallel({.output_layouts = stream});
  ParallelizePlan plan{
      {"model.embed_tokens",
       RowwiseParallel(
           {.input_layouts = Replicate(), .output_layouts = stream})},
      {"model.layers.*.self_attn.q_proj", columns},
      {"model.layers.*.self_attn.k_proj", columns},
      {"model.layers.*.self_attn.v_proj", columns},
      {"model.layers.*.self_attn.o_proj", rows},
      {"model.layers.*.mlp.gate_proj", columns},
      {"model.layers.*.mlp.up_proj", columns},
      {"model.layers.*.mlp.down_proj", rows}};
  if (!tie_embeddings) {
    plan.emplace_back(
        "lm_head",
        ColwiseParallel(
            {.input_layouts = stream,
             .output_layouts =
                 config.loss_parallel ? Shard(-1) : Replicate()}));
  }
  if (config.sequence_parallel) {
    for (const auto* norm :
         {"model.layers.*.input_layernorm",
          "model.layers.*.post_attention_layernorm",
          "model.norm"}) {
      plan.emplace_back(norm, SequenceParallel());
    }
  }
  return plan;
}

} // namespace weft::recipes
