#include "models/vit_plan.h"

namespace weft::recipes {

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
  // Told that it is whole, a norm takes its gradient whole: those of its
  // weights and of row biases are not left pending then.
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

} // namespace weft::recipes
