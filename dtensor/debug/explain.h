#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/scopes/comm_debug.h"
#include "mesh/link_cost.h"

namespace weft::dtensor {

/// A collective, and what it is estimated to take.
struct ExplainedCollective : CommRecord {
  double estimated_us = 0;
};

/// What a piece of a program communicates.
struct Explanation {
  std::vector<ExplainedCollective> entries;

  int64_t bytes() const;
  double estimated_us() const;
  /// Those that no one asked for.
  int64_t implicit_count() const;
  /// A line a collective: kind, mesh dim, ranks, bytes, time, who caused it,
  /// from where to where, and the cheaper placement if there is one.
  std::string to_string() const;
  /// One line.
  std::string to_json() const;
};

struct ExplainOptions {
  /// Names modules, see CommDebugOptions.
  torch::nn::Module* module = nullptr;
  /// Prices of a mesh dim's links; default: mesh::link_cost().
  std::function<mesh::LinkCost(std::string_view mesh_dim)> link_cost = {};
};

/// Runs `program`, an op or whole steps on DTensors of `mesh`, and says what it
/// communicated and why. On a mesh of World::fake() nothing is sent; with
/// local tensors on the meta device nothing is computed either.
/// Collective: as `program`.
Explanation explain(
    const mesh::DeviceMesh& mesh,
    const std::function<void()>& program,
    const ExplainOptions& options = {});

/// Microseconds that a ledger's collective takes among `ranks` ranks.
double estimated_us(
    std::string_view op,
    int64_t ranks,
    int64_t bytes,
    const mesh::LinkCost& link);

} // namespace weft::dtensor
