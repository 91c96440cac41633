#include "models/plans.h"

#include <string>
#include <vector>

#include "tp/expert_parallel.h"
#include "tp/replicated_kv_heads.h"

namespace weft::models {

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

tp::ParallelizePlan gpt2_plan(
    const PlanOptions& options,
    const Gpt2Config& /*config*/) {
  using namespace tp;
  const auto stream = options.stream();
  const auto columns = ColwiseParallel({.input_layouts = stream});
  const auto rows = RowwiseParallel({.output_layouts = stream});
  ParallelizePlan plan{
      {"transformer.wte",
       RowwiseParallel(
           {.input_layouts = Replicate(), .output_layouts = stream})},
      {"transformer.h.*.attn.q_proj", columns},
      {"transformer.h.*.attn.k_proj", columns},
      {"transformer.h.*.attn.v_proj", columns},
      {"transformer.h.*.attn.c_proj", rows},
      {"transformer.h.*.mlp.c_fc", columns},
      {"transformer.h.*.mlp.c_proj", rows}};
  // NoParallel makes a norm replicate its output gradient. Otherwise the
  // gradients of the norm's weights and of the biases of row-wise layers would
  // be Partial.
  for (const auto* norm :
       {"transformer.h.*.ln_1", "transformer.h.*.ln_2", "transformer.ln_f"}) {
    plan.emplace_back(
        norm, options.sequence_parallel ? SequenceParallel() : NoParallel());
  }
  return plan;
}

tp::ParallelizePlan moe_plan(
    const PlanOptions& options,
    const MoeConfig& config) {
  auto plan = llama_plan(options, config);
  std::erase_if(plan, [](const auto& entry) {
    return entry.first.starts_with("model.layers.*.mlp.");
  });
  plan.emplace_back(
      "model.layers.*.mlp.experts",
      tp::ExpertParallel({.output_layouts = options.stream()}));
  return plan;
}

tp::ParallelizePlan vit_plan(
    const PlanOptions& options,
    const VitConfig& /*config*/) {
  using namespace tp;
  const auto stream = options.stream();
  const auto columns = ColwiseParallel({.input_layouts = stream});
  const auto rows = RowwiseParallel({.output_layouts = stream});
  ParallelizePlan plan{
      {"vit.embeddings", NoParallel({.output_layout = stream})},
      {"vit.embeddings.patch_embeddings.projection", NoParallel()},
      {"vit.layers.*.attention.q_proj", columns},
      {"vit.layers.*.attention.k_proj", columns},
      {"vit.layers.*.attention.v_proj", columns},
      {"vit.layers.*.attention.o_proj", rows},
      {"vit.layers.*.mlp.fc1", columns},
      {"vit.layers.*.mlp.fc2", rows},
      {"classifier", ColwiseParallel({.output_layouts = options.logits()})}};
  // NoParallel makes a norm replicate its output gradient. Otherwise the
  // gradients of the norm's weights and of the biases of row-wise layers would
  // be Partial.
  for (const auto* norm :
       {"vit.layers.*.layernorm_before",
        "vit.layers.*.layernorm_after",
        "vit.layernorm"}) {
    plan.emplace_back(
        norm, options.sequence_parallel ? SequenceParallel() : NoParallel());
  }
  if (options.sequence_parallel) {
    plan.emplace_back(
        "vit",
        PrepareModuleOutput(
            {.output_layouts = {stream},
             .desired_output_layouts = {Replicate()}}));
  }
  return plan;
}

tp::ParallelizePlan mlp_plan(
    const PlanOptions& options,
    const MlpConfig& config) {
  using namespace tp;
  ParallelizePlan plan;
  for (int64_t i = 0; i < config.layers; ++i) {
    plan.emplace_back(
        "layers." + std::to_string(i),
        i % 2 == 0 ? ColwiseParallel() : RowwiseParallel());
  }
  const bool cut = config.layers % 2 == 1;
  const LayoutOptions logits{.output_layouts = options.logits()};
  plan.emplace_back(
      "head", cut ? RowwiseParallel(logits) : ColwiseParallel(logits));
  return plan;
}

} // namespace weft::models
