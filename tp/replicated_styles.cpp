// Styles with replicated parameters: SequenceParallel and NoParallel.

#include <torch/torch.h>

#include "dtensor/tensor/parameter_info.h"
#include "tp/module_tensors.h"
#include "tp/style.h"

namespace weft::tp {
namespace {

using torch::nn::EmbeddingImpl;
using torch::nn::LayerNormImpl;
using torch::nn::LinearImpl;

std::map<std::string, Placements> place_replicated(const StyleTarget& target) {
  std::map<std::string, Placements> places;
  for (const auto& item : target.module.named_parameters(/*recurse=*/false)) {
    places[item.key()] = Placements(target.mesh.ndim(), Replicate());
  }
  return places;
}

// Returns true if forward() is a single norm op, which takes its layout from
// the weight.
bool is_layer_norm(torch::nn::Module& module) {
  const auto* norm = module.as<LayerNormImpl>();
  return norm && norm->weight.defined();
}

void apply_sequence(
    const Layout& sequence,
    bool use_local_output,
    const StyleTarget& target) {
  const auto placements = sequence.on(target.mesh);
  for (auto& item : target.module.named_parameters(/*recurse=*/false)) {
    dtensor::parameter_info(item.value()).norm.input = placements;
  }
  if (!is_layer_norm(target.module)) {
    place_first_input(
        target.module, target.mesh, {.from = sequence, .to = sequence});
  }
  if (use_local_output) {
    place_outputs(target.module, target.mesh, {.use_local = true});
  }
}

void apply_replicated(
    const NoParallelOptions& options,
    const StyleTarget& target) {
  const auto& mesh = target.mesh;
  dtensor::OpLayout layout;
  layout.input = options.input_layout.on(mesh);
  layout.desired_input = options.desired_input_layout.on(mesh);
  layout.output = options.output_layout.on(mesh);
  if (auto* linear = target.module.as<LinearImpl>()) {
    dtensor::parameter_info(linear->weight).linear = layout;
  } else if (auto* embedding = target.module.as<EmbeddingImpl>()) {
    dtensor::parameter_info(embedding->weight).embedding = layout;
  } else if (is_layer_norm(target.module)) {
    auto* norm = target.module.as<LayerNormImpl>();
    dtensor::parameter_info(norm->weight).norm = layout;
  } else {
    place_first_input(
        target.module,
        mesh,
        {.from = options.input_layout, .to = options.desired_input_layout});
    place_outputs(target.module, mesh, {.to = options.output_layout});
  }
  if (options.use_local_output) {
    place_outputs(target.module, mesh, {.use_local = true});
  }
}

} // namespace

ParallelStyle SequenceParallel(SequenceParallelOptions options) {
  const auto sequence =
      options.layouts.value_or(Layout(Shard(options.sequence_dim)));
  const bool local = options.use_local_output;
  return ParallelStyle(
      {.name = "SequenceParallel",
       .places_parameters = true,
       .place =
           [sequence](const StyleTarget& target) {
             sequence.check(
                 target.mesh, "SequenceParallel", target.name() + ": layouts");
             return place_replicated(target);
           },
       .apply =
           [sequence, local](const StyleTarget& target) {
             apply_sequence(sequence, local, target);
           }});
}

ParallelStyle SequenceParallel(int64_t sequence_dim) {
  return SequenceParallel(
      SequenceParallelOptions{.sequence_dim = sequence_dim});
}

ParallelStyle NoParallel(NoParallelOptions options) {
  return ParallelStyle(
      {.name = "NoParallel",
       .places_parameters = true,
       .place =
           [options](const StyleTarget& target) {
             const auto check = [&](const Layout& layout, const char* what) {
               layout.check(
                   target.mesh, "NoParallel", target.name() + ": " + what);
             };
             check(options.input_layout, "input_layout");
             check(options.output_layout, "output_layout");
             check(options.desired_input_layout, "desired_input_layout");
             return place_replicated(target);
           },
       .apply =
           [options](const StyleTarget& target) {
             apply_replicated(options, target);
           }});
}

} // namespace weft::tp
