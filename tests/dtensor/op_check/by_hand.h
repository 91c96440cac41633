#pragma once

#include <cstdint>
#include <vector>

#include "dtensor/rules/rule.h"
#include "mesh/device_mesh.h"
#include "tests/dtensor/op_check/op_samples.h"

namespace weft::dtensor::check {

/// A mesh as each of its ranks sees it; nobody communicates.
struct Grid {
  explicit Grid(const std::vector<int64_t>& shape);

  std::vector<int64_t> shape;
  std::vector<mesh::DeviceMesh> meshes;
};

/// By tensor (of the inputs) and rank, or by rank and tensor (of the results).
using Parts = std::vector<std::vector<at::Tensor>>;

/// One call of an op with a rule, done by hand: cut the inputs, run the op on
/// each rank's parts, join what they make.
class ByHand {
 public:
  ByHand(const Sample& sample, Stack arguments, const Grid& grid);

  const Grid& grid() const { return grid_; }
  const Rule& rule() const { return rule_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// What one rank makes.
  const std::vector<at::Tensor>& expected() const { return expected_; }

  /// The planner's idea of the outputs if all inputs lie at `where`.
  /// Throws: c10::Error if one rank makes other sizes or strides.
  std::vector<OutputMeta> infer(const Placement& where) const;
  /// The rule's strategies on `mesh_dim`, all-replicated last.
  std::vector<Strategy> strategies(
      int64_t mesh_dim,
      const Placement& where,
      const std::vector<OutputMeta>& metas) const;

  Parts cut(const std::vector<Placements>& inputs) const;
  /// What each rank's op makes of `parts`.
  Parts run(
      const std::vector<Placements>& inputs,
      const std::vector<Placements>& outputs,
      const std::vector<OutputMeta>& metas,
      const Parts& parts) const;
  /// Throws: c10::Error unless output `i` of all ranks stands, placed so, for
  /// what one rank makes; where that is rounded, for the true value.
  void compare(const Parts& results, size_t i, const Placements& placements)
      const;

 private:
  OpCall call_with(const Stack& dtensors) const;
  Stack wrap(
      size_t rank,
      const std::vector<Placements>& placements,
      const Parts& parts) const;
  Stack wrap_all(const Placement& where) const;
  Stack local_arguments(
      size_t rank,
      const std::vector<Placements>& inputs,
      const std::vector<Placements>& outputs,
      const std::vector<OutputMeta>& metas,
      const Parts& parts) const;

  const Sample& sample_;
  const Grid& grid_;
  const Rule& rule_;
  Stack arguments_;
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> expected_;
  /// For narrow floats: the result computed in double. May be empty.
  std::vector<at::Tensor> truth_;
};

/// The placement of output `i`.
Placement output_of(const Strategy& strategy, size_t i);

} // namespace weft::dtensor::check
