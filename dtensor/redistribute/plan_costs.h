#pragma once

#include <vector>

#include "dtensor/redistribute/redistribute_plan.h"

namespace weft::dtensor {

/// What steps cost for one tensor on one mesh: see Note [Redistribution cost
/// model].
/// Lifetime: not beyond the mesh and the sizes.
class PlanCosts {
 public:
  PlanCosts(
      const mesh::DeviceMesh& mesh,
      c10::IntArrayRef sizes,
      int64_t element_size);

  int64_t ranks_of(const std::vector<int64_t>& mesh_dims) const;
  /// What a step costs whatever it moves.
  double min_us(
      const Placements& from,
      const Placements& to,
      StepKind kind,
      const std::vector<int64_t>& mesh_dims) const;
  /// Sets bytes and us; one that only changes a cut's name becomes local.
  void set_cost(PlanStep& step) const;

 private:
  mesh::LinkCost link_of(const std::vector<int64_t>& mesh_dims) const;
  double largest_bytes(
      const Placements& placements,
      const std::vector<int64_t>& mesh_dims) const;
  double busiest_bytes(const PlanStep& step) const;
  bool is_same_sharding(const PlanStep& step) const;

  const std::vector<int64_t>& shape_;
  c10::IntArrayRef sizes_;
  double element_size_;
  std::vector<mesh::LinkCost> links_;
};

} // namespace weft::dtensor
