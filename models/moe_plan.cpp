#include "models/moe_plan.h"

#include <vector>

#include "models/llama_plan.h"
#include "tp/expert_parallel.h"

namespace weft::recipes {

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

} // namespace weft::recipes
