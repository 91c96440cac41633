#include "tp/expert_parallel.h"

#include "mesh/error/error.h"
#include "tp/module_tensors.h"

namespace weft::tp {
namespace {

std::map<std::string, Placements> place_experts(const StyleTarget& target) {
  std::map<std::string, Placements> places;
  for (const auto& item : target.module.named_parameters(/*recurse=*/false)) {
    WEFT_CHECK(
        item.value().dim() > 0,
        "ExpertParallel",
        mesh::ErrorContext{target.mesh.describe_rank()},
        target.name(),
        ": parameter \"",
        item.key(),
        "\" must have a dim of experts: got 0 dims, expected at least 1.");
    places[item.key()] = Placements(target.mesh.ndim(), Shard(0));
  }
  WEFT_CHECK(
      !places.empty(),
      "ExpertParallel",
      mesh::ErrorContext{target.mesh.describe_rank()},
      target.name(),
      " has no parameters of its own. Name the module that has the experts' "
      "weights.");
  return places;
}

} // namespace

ParallelStyle ExpertParallel(ExpertParallelOptions options) {
  return ParallelStyle(StyleFunctions{
      .name = "ExpertParallel",
      .places_parameters = true,
      .place = place_experts,
      .apply = [options](const StyleTarget& target) {
        if (options.output_layouts) {
          place_outputs(
              target.module, target.mesh, {.to = *options.output_layouts});
        }
      }});
}

} // namespace weft::tp
