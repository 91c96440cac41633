#include "models/mlp_plan.h"

#include <string>

namespace weft::recipes {

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

} // namespace weft::recipes
