#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/load/load_selection.h"
#include "checkpoint/save/save_plan.h"
#include "mesh/world.h"

namespace weft::checkpoint {

/// Which rank reads what, so that each distinct part is read once, and how its
/// values get to the other ranks that hold it: a broadcast along each mesh dim
/// that repeats the tensor, one after the other, from the reader's coordinate.
class LoadReplicas {
 public:
  LoadReplicas(const std::vector<LoadTarget>& targets, mesh::World world);

  /// Whether this rank reads its part of target `i` for all that hold it.
  bool is_reader(size_t i) const;

  /// The targets in runs [first, last), of which a rank's parts take about
  /// `bytes`, or of one target. The same on all ranks.
  std::vector<std::pair<size_t, size_t>> batches(int64_t bytes) const;

  /// Hands on the parts of the targets [first, first + parts.size()): each is
  /// contiguous, on the CPU, and has its values where this rank is the reader.
  /// Collective: all ranks of the world; blocks.
  void broadcast(size_t first, const std::vector<at::Tensor>& parts) const;

 private:
  /// A broadcast along one mesh dim; 0 for a tensor that all ranks hold.
  struct Stage {
    int64_t mesh_dim;
    int64_t root;
    bool operator==(const Stage&) const = default;
  };
  /// How all targets of one kind travel.
  struct Route {
    std::optional<mesh::DeviceMesh> mesh;
    std::vector<Stage> stages;
  };

  size_t route_number(size_t i);
  Route route_of(size_t i) const;
  void run(const Route& route, const std::vector<at::Tensor>& bytes) const;

  SavePlan plan_;
  mesh::World world_;
  std::vector<Route> routes_;
  /// By target.
  std::vector<size_t> route_of_;
};

} // namespace weft::checkpoint
