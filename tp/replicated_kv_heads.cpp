#include "tp/replicated_kv_heads.h"

#include <torch/torch.h>

#include "dtensor/tensor/parameter_info.h"
#include "mesh/error/error.h"

namespace weft::tp {
namespace {

using torch::nn::LinearImpl;

std::map<std::string, Placements> place_shared(const StyleTarget& target) {
  auto* linear = target.module.as<LinearImpl>();
  if (!linear) {
    mesh::throw_error<c10::ValueError>(
        "[ReplicatedKvHeads] " + target.name() + " is a " +
        target.module.name() + ", not a Linear. Choose another style. (" +
        target.mesh.describe_rank() + ")");
  }
  const Placements whole(target.mesh.ndim(), Replicate());
  std::map<std::string, Placements> places{{"weight", whole}};
  if (linear->bias.defined()) {
    places["bias"] = whole;
  }
  return places;
}

} // namespace

ParallelStyle ReplicatedKvHeads(ReplicatedKvHeadsOptions options) {
  return ParallelStyle(StyleFunctions{
      .name = "ReplicatedKvHeads",
      .places_parameters = true,
      .place = place_shared,
      .apply = [options](const StyleTarget& target) {
        auto& info =
            dtensor::parameter_info(target.module.as<LinearImpl>()->weight);
        info.linear.input = options.input_layouts.on(target.mesh);
        info.linear.output_grad = Placements(target.mesh.ndim(), Partial());
      }});
}

} // namespace weft::tp
