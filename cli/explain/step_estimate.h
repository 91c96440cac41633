#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "dtensor/debug/explain.h"
#include "mesh/link_cost.h"

namespace weft::recipes {

/// Collectives of a step that differ in nothing but the layer and the
/// micro-batch.
struct CollectiveGroup {
  /// "forward", "backward" or "update" (loss, gradient norm).
  std::string phase;
  std::string op;
  std::string mesh_dim;
  int64_t ranks = 0;
  /// What the ledger calls it, numbers of layers and buckets as "*".
  std::string name;
  bool is_implicit = false;
  /// Of the redistribution that it is; empty if of none.
  std::string from;
  std::string to;
  std::string cheaper;
  int64_t count = 0;
  /// Of all of them.
  int64_t bytes = 0;
  int64_t max_bytes = 0;
  double estimated_us = 0;

  bool operator==(const CollectiveGroup&) const = default;
};

/// What one rank holds. Unit: bytes.
struct MemoryEstimate {
  int64_t parameters = 0;
  /// Rotary tables and the like.
  int64_t buffers = 0;
  /// In the buckets that they are reduced in.
  int64_t gradients = 0;
  int64_t optimizer = 0;
  /// Where parameters are sharded: of units that are gathered at once.
  int64_t unsharded = 0;
  /// The messages of such units: what is gathered, and gradients on their way.
  int64_t reduction_buffers = 0;
  /// What forward keeps for backward.
  int64_t saved_activations = 0;
  /// The most that forward and backward hold beside all that; where
  /// parameters are sharded, what is left at the peak of all together.
  int64_t peak_activations = 0;

  int64_t total() const {
    return parameters + buffers + gradients + optimizer + unsharded +
           reduction_buffers + peak_activations;
  }
};

/// What a mesh dim's links are taken to be.
struct LinkEstimate {
  std::string mesh_dim;
  int64_t ranks = 0;
  bool between_hosts = false;
  mesh::LinkCost cost;
};

/// One training step of a recipe on rank 0, as if the others were there.
struct StepEstimate {
  int64_t world_size = 0;
  int64_t parameter_count = 0;
  int64_t micro_batches = 0;
  MemoryEstimate memory;
  std::vector<LinkEstimate> links;
  /// In the order of their first launch.
  std::vector<CollectiveGroup> collectives;

  int64_t collective_count() const;
  int64_t implicit_count() const;
  int64_t bytes() const;
  double estimated_us() const;
};

struct EstimateOptions {
  /// Ranks that share a host, neighbours; 0: 8 for CUDA, else all.
  int64_t ranks_per_host = 0;
};

/// Runs steps of a validated recipe's real model, parallel plan and buckets in
/// an imagined world, with tensors that have sizes and no data. Launches
/// nothing, reads no data.
StepEstimate estimate_step(
    const Recipe& recipe,
    const EstimateOptions& options = {});

/// What a recipe's communication_budget does not allow, in words; empty if the
/// step keeps to it.
std::vector<std::string> over_budget(
    const StepEstimate& estimate,
    const CommunicationBudgetConfig& budget);

} // namespace weft::recipes
