#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace weft::ddp {

/// Decides at which steps the replicas' parameters are averaged, and over
/// which of them.
/// Source: torch/distributed/algorithms/model_averaging/averagers.py.
class ModelAverager {
 public:
  ModelAverager() = default;
  ModelAverager(const ModelAverager&) = delete;
  ModelAverager& operator=(const ModelAverager&) = delete;
  virtual ~ModelAverager() = default;

  /// To be called after every step of the optimizer, with parameters_of() its
  /// groups or the model's parameters().
  /// Collective: all replicas; blocks at the steps that average.
  void average_parameters(const std::vector<at::Tensor>& parameters);

  /// How often average_parameters() was called.
  int64_t step() const { return step_; }
  /// Throws: c10::ValueError for a negative number.
  void set_step(int64_t step);

 protected:
  /// The group to average over at `step`, if any.
  virtual mesh::Communicator* group_at(int64_t step) = 0;

 private:
  int64_t step_ = 0;
};

/// Averages every `period` steps, `warmup_steps` steps from the start on.
class PeriodicModelAverager : public ModelAverager {
 public:
  /// Warns if `period` is 1: DDP moves no more.
  /// Throws: c10::ValueError if `period` is below 1 or `warmup_steps` negative.
  PeriodicModelAverager(
      int64_t period,
      int64_t warmup_steps,
      mesh::Communicator group);
  /// `dp_mesh` has one dim: the replicas.
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

/// Averages over larger groups the more seldom: at a step, that of the largest
/// period that divides it.
/// Source: torch/distributed/algorithms/model_averaging/
/// hierarchical_model_averager.py.
class HierarchicalModelAverager : public ModelAverager {
 public:
  /// `period_group_size`: periods and sizes of groups, both ascending; the last
  /// group is all of `dp_mesh`, which has one dim. Each group has neighbours in
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

/// The part of `mesh` that this rank is in, if its ranks are cut, in their
/// order, into groups of `group_size`.
/// Collective: all ranks of the world, in the same order with other calls;
/// blocks.
/// Throws: c10::ValueError for a mesh of several dims, or if `group_size` does
/// not divide its size.
/// Source: torch/distributed/distributed_c10d.py, new_subgroups.
mesh::Communicator new_subgroups(
    const mesh::DeviceMesh& mesh,
    int64_t group_size);

} // namespace weft::ddp
