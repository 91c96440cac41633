#pragma once

#include <vector>

#include "dtensor/redistribute/redistribute_plan.h"

namespace weft::dtensor {

/// The costs of steps for one tensor on one mesh. See Note [Redistribution cost
/// model].
/// Lifetime: the mesh and the sizes must outlive this object.
class PlanCosts {
 public:
  PlanCosts(
      const mesh::DeviceMesh& mesh,
      c10::IntArrayRef sizes,
      int64_t element_size);

  int64_t ranks_of(const std::vector<int64_t>& mesh_dims) const;
  /// Returns the part of a step's cost that does not depend on its size.
  double min_us(
      const Placements& from,
      const Placements& to,
      StepKind kind,
      const std::vector<int64_t>& mesh_dims) const;
  /// Sets the bytes and the time of a step. A step that only changes a shard's
  /// representation becomes local.
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
