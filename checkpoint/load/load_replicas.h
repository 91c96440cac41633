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

/// Decides which rank reads which part, so that each distinct part is read
/// once, and sends it to its replicas: by one broadcast from the reader's
/// coordinate along each mesh dim that replicates the tensor, one after
/// another.
class LoadReplicas {
 public:
  LoadReplicas(const std::vector<LoadTarget>& targets, mesh::World world);

  /// Returns true if this rank reads its part of target `i` for all replicas.
  bool is_reader(size_t i) const;

  /// Returns the targets as ranges [first, last) whose parts take about `bytes`
  /// per rank; a larger target gets a range of its own. Identical on all ranks.
  std::vector<std::pair<size_t, size_t>> batches(int64_t bytes) const;

  /// Sends each part from the rank that read it to the ranks with a replica.
  /// parts[i] belongs to target first + i; it is contiguous and on the CPU. It
  /// is overwritten on all ranks but the reading one.
  /// Collective: all ranks of the world; blocks.
  void broadcast(size_t first, const std::vector<at::Tensor>& parts) const;

 private:
  /// A broadcast along one mesh dim. The mesh dim is 0 for a tensor that all
  /// ranks hold.
  struct Stage {
    int64_t mesh_dim;
    int64_t root;
    bool operator==(const Stage&) const = default;
  };
  /// The broadcasts of all targets with the same mesh and stages.
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
  /// The index in routes_ of each target.
  std::vector<size_t> route_of_;
};

} // namespace weft::checkpoint
