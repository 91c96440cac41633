#pragma once

// How the model is sharded over the ranks of the mesh dim "tp".

#include <weft/models/plans.h>
#include <weft/tp/parallelize_module.h>

namespace own {

/// Returns the plan. Between the modules named here, activations [batch,
/// position, width] have the placement in the options: sharded by position
/// unless a recipe disables it.
inline weft::tp::ParallelizePlan plan(
    const weft::models::PlanOptions& options = {}) {
  using namespace weft::tp;
  const auto stream = options.stream();
  const auto columns = ColwiseParallel({.input_layouts = stream});
  const auto rows = RowwiseParallel({.output_layouts = stream});
  const auto bytes =
      RowwiseParallel({.input_layouts = Replicate(), .output_layouts = stream});
  const auto logits = ColwiseParallel(
      {.input_layouts = stream, .output_layouts = options.logits()});
  const auto norm =
      options.sequence_parallel ? SequenceParallel() : NoParallel();
  const ParallelizePlan block{
      {"norm", norm},
      {"attention.query", columns},
      {"attention.key", columns},
      {"attention.value", columns},
      {"attention.out", rows},
      {"mlp.up", columns},
      {"mlp.down", rows}};
  return {
      {"embed", bytes}, {"blocks.*", block}, {"norm", norm}, {"head", logits}};
}

} // namespace own
