#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "config/recipe.h"

namespace weft::cli {

/// The collectives of a run's steps, as recorded by rank 0.
struct MeasuredRun {
  struct Call {
    int64_t count = 0;
    double us = 0;
    /// The time of the call that waited least for other ranks.
    double min_us = std::numeric_limits<double>::infinity();

    double mean_us() const { return us / static_cast<double>(count); }
  };
  /// The number of traced steps. 0 means no trace; `calls` is then empty.
  int64_t steps = 0;
  /// The calls of all traced steps by (op, mesh dim, name as in
  /// CollectiveGroup).
  std::map<std::string, Call> calls;
  /// The median of comm_ms in metrics.jsonl: the time per step that the host
  /// waited for other ranks.
  std::optional<double> comm_ms;

  /// Returns a call, or null if none was traced.
  const Call* find(
      const std::string& op,
      const std::string& mesh_dim,
      const std::string& name) const;
};

/// Reads trace.json and metrics.jsonl of a run's folder.
/// Throws: mesh::UsageError naming the folder, if it has no measurements or its
/// recipe.yaml describes other steps than `recipe`, with the key that differs;
/// naming the file, if it cannot be read.
MeasuredRun read_measured(
    const std::string& folder,
    const config::Recipe& recipe);

/// Returns "model.layers.*.mlp" for "model.layers.17.mlp", and "ddp bucket *"
/// for "ddp bucket 3/9".
std::string without_numbers(const std::string& name);

} // namespace weft::cli
