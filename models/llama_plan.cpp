#include "models/llama_plan.h"

#include "tp/replicated_kv_heads.h"

namespace weft::recipes {

tp::ParallelizePlan llama_plan(
    const PlanOptions& options,
    const LlamaConfig& config) {
  using namespace tp;
  const auto stream = options.stream();
  const auto columns = ColwiseParallel({.input_layouts = stream});
  const auto rows = RowwiseParallel({.output_layouts = stream});
  const auto keys = config.kv_heads % options.size == 0
                        ? columns
                        : ReplicatedKvHeads({.input_layouts = stream});
  ParallelizePlan plan{
      {"model.embed_tokens",
       RowwiseParallel(
           {.input_layouts = Replicate(), .output_layouts = stream})},
      {"model.layers.*.self_attn.q_proj", columns},
      {"model.layers.*.self_attn.k_proj", keys},
      {"model.layers.*.self_attn.v_proj", keys},
      {"model.layers.*.self_attn.o_proj", rows},
      {"model.layers.*.mlp.gate_proj", columns},
      {"model.layers.*.mlp.up_proj", columns},
      {"model.layers.*.mlp.down_proj", rows}};
  if (!config.tie_embeddings) {
    plan.emplace_back(
        "lm_head",
        ColwiseParallel(
            {.input_layouts = stream, .output_layouts = options.logits()}));
  }
  if (options.sequence_parallel) {
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
