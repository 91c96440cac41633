#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/scopes/comm_debug.h"
#include "mesh/link_cost.h"

namespace weft::dtensor {

/// A collective and its estimated time.
struct ExplainedCollective : CommRecord {
  /// The estimated time in microseconds.
  double estimated_us = 0;
};

/// The communication of a part of a program.
struct Explanation {
  /// The collectives in the order of their launch.
  std::vector<ExplainedCollective> entries;

  /// Returns the sum of CommRecord::bytes.
  int64_t bytes() const;
  /// Returns the sum of the estimated times in microseconds.
  double estimated_us() const;
  /// Returns the number of collectives that the program did not ask for.
  int64_t implicit_count() const;
  /// Formats one line per collective: kind, mesh dim, ranks, bytes, time, the
  /// op that caused it, the placements before and after, and a cheaper
  /// placement if there is one.
  std::string to_string() const;
  /// Formats one line of JSON.
  std::string to_json() const;
};

/// The options of explain().
struct ExplainOptions {
  /// Provides module names. See CommDebugOptions.
  torch::nn::Module* module = nullptr;
  /// The link cost of a mesh dim. The default is mesh::link_cost().
  std::function<mesh::LinkCost(std::string_view mesh_dim)> link_cost = {};
};

/// Runs `program`, an op or whole steps on DTensors of `mesh`, and returns what
/// it communicates and why. On a mesh of World::fake() nothing is sent; with
/// local tensors on the meta device nothing is computed either.
/// Collective: like `program`.
Explanation explain(
    const mesh::DeviceMesh& mesh,
    const std::function<void()>& program,
    const ExplainOptions& options = {});

/// Returns the time in microseconds of a recorded collective among `ranks`
/// ranks.
double estimated_us(
    std::string_view op,
    int64_t ranks,
    int64_t bytes,
    const mesh::LinkCost& link);

} // namespace weft::dtensor
