#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace weft::ddp {

/// Decides at which steps, and over which replicas, parameters are averaged.
/// Source: torch/distributed/algorithms/model_averaging/averagers.py.
class ModelAverager {
 public:
  ModelAverager() = default;
  ModelAverager(const ModelAverager&) = delete;
  ModelAverager& operator=(const ModelAverager&) = delete;
  virtual ~ModelAverager() = default;

  /// Averages if this step does. To be called after every optimizer step, with
  /// parameters_of() its groups or the model's parameters().
  /// Collective: all replicas; blocks at the steps that average.
  void average_parameters(const std::vector<at::Tensor>& parameters);

  /// The number of calls of average_parameters().
  int64_t step() const { return step_; }
  /// Throws: c10::ValueError for a negative number.
  void set_step(int64_t step);

 protected:
  /// Returns the group to average over at `step`, or null.
  virtual mesh::Communicator* group_at(int64_t step) = 0;

 private:
  int64_t step_ = 0;
};

/// Averages every `period` steps after `warmup_steps` steps.
class PeriodicModelAverager : public ModelAverager {
 public:
  /// Warns if `period` is 1, which sends as much as DDP.
  /// Throws: c10::ValueError if `period` is below 1 or `warmup_steps` is
  /// negative.
  PeriodicModelAverager(
      int64_t period,
      int64_t warmup_steps,
      mesh::Communicator group);
  /// `dp_mesh` is the 1-D mesh of the replicas.
  PeriodicModelAverager(
      int64_t period,
      int64_t warmup_steps,
      const mesh::DeviceMesh& dp_mesh);

 protected:
  mesh::Communicator* group_at(int64_t step) override;

 private:
  int64_t period_;
  int64_t warmup_steps_;
  mesh::Communicator group_;
};

/// Averages over larger groups less often: each step uses the group of the
/// largest period that divides it.
/// Source:
/// torch/distributed/algorithms/model_averaging/hierarchical_model_averager.py.
class HierarchicalModelAverager : public ModelAverager {
 public:
  /// `period_group_size` has periods and group sizes, both ascending; the last
  /// group is all of the 1-D mesh `dp_mesh`. Members of a group are adjacent in
  /// the mesh.
  /// Collective: all ranks of the world; blocks.
  /// Throws: c10::ValueError if periods or sizes do not ascend, a size does not
  /// divide the mesh's, or `warmup_steps` is negative.
  HierarchicalModelAverager(
      const std::vector<std::pair<int64_t, int64_t>>& period_group_size,
      int64_t warmup_steps,
      const mesh::DeviceMesh& dp_mesh);

 protected:
  mesh::Communicator* group_at(int64_t step) override;

 private:
  std::vector<std::pair<int64_t, mesh::Communicator>> period_group_;
  int64_t warmup_steps_;
};

/// Splits the ranks of `mesh`, in order, into groups of `group_size` and
/// returns the group of this rank.
/// Collective: all ranks of the world, in the same order relative to other
/// calls; blocks.
/// Throws: c10::ValueError for a mesh of several dims, or if `group_size` does
/// not divide its size.
/// Source: torch/distributed/distributed_c10d.py, new_subgroups.
mesh::Communicator new_subgroups(
    const mesh::DeviceMesh& mesh,
    int64_t group_size);

} // namespace weft::ddp
