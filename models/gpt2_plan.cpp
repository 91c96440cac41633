#include "models/gpt2_plan.h"

namespace weft::recipes {

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
  // Told that it is whole, a norm takes its gradient whole: those of its
  // weights and of row biases are not left pending then.
  for (const auto* norm :
       {"transformer.h.*.ln_1", "transformer.h.*.ln_2", "transformer.ln_f"}) {
    plan.emplace_back(
        norm, options.sequence_parallel ? SequenceParallel() : NoParallel());
  }
  return plan;
}

} // namespace weft::recipes
