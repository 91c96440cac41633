#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "mesh/link_cost.h"

namespace weft::cli {

/// Collectives of a step that differ only in the layer and the micro-batch.
struct CollectiveGroup {
  /// "forward", "backward" or "update" (loss, gradient norm).
  std::string phase;
  std::string op;
  std::string mesh_dim;
  int64_t ranks = 0;
  /// The name in the flight recorder, with the numbers of layers and buckets as
  /// "*".
  std::string name;
  bool is_implicit = false;
  /// The redistribution that it belongs to. Empty if none.
  std::string from;
  std::string to;
  std::string cheaper;
  int64_t count = 0;
  /// The sum over all of them.
  int64_t bytes = 0;
  int64_t max_bytes = 0;
  double estimated_us = 0;

  bool operator==(const CollectiveGroup&) const = default;
};

/// The memory of one rank.
/// Unit: bytes.
struct MemoryEstimate {
  int64_t parameters = 0;
  /// Computed tensors such as rotary tables.
  int64_t buffers = 0;
  /// The gradients, in the buckets in which they are reduced.
  int64_t gradients = 0;
  int64_t optimizer = 0;
  /// With sharded parameters: units that are gathered at the same time.
  int64_t unsharded = 0;
  /// The messages of such units: gathered data and gradients in flight.
  int64_t reduction_buffers = 0;
  /// The activations that forward saves for backward.
  int64_t saved_activations = 0;
  /// The peak of forward and backward in addition to the above; with sharded
  /// parameters, the remainder at the joint peak.
  int64_t peak_activations = 0;

  int64_t total() const {
    return parameters + buffers + gradients + optimizer + unsharded +
           reduction_buffers + peak_activations;
  }
};

/// The assumed link of a mesh dim.
struct LinkEstimate {
  std::string mesh_dim;
  int64_t ranks = 0;
  bool between_hosts = false;
  mesh::LinkCost cost;
};

/// One training step of a recipe on rank 0 of a fake process group.
struct StepEstimate {
  int64_t world_size = 0;
  int64_t parameter_count = 0;
  int64_t micro_batches = 0;
  MemoryEstimate memory;
  std::vector<LinkEstimate> links;
  /// The collectives in the order of their first launch.
  std::vector<CollectiveGroup> collectives;

  int64_t collective_count() const;
  int64_t implicit_count() const;
  int64_t bytes() const;
  double estimated_us() const;
};

struct EstimateOptions {
  /// The number of consecutive ranks on a host. 0 means 8 for CUDA, otherwise
  /// all.
  int64_t ranks_per_host = 0;
};

/// Runs steps of the model, parallel plan and buckets of a validated recipe on
/// a fake process group, with tensors on the meta device. Starts no processes
/// and reads no data.
StepEstimate estimate_step(
    const config::Recipe& recipe,
    const EstimateOptions& options = {});

/// Describes the limits of a recipe's communication_budget that the step
/// exceeds. Empty if there are none.
std::vector<std::string> over_budget(
    const StepEstimate& estimate,
    const config::CommunicationBudgetConfig& budget);

} // namespace weft::cli
