#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "config/recipe.h"

namespace weft::recipes {

/// What the ledgers of a run's rank 0 say of its steps.
struct MeasuredRun {
  struct Call {
    int64_t count = 0;
    double us = 0;
    /// Of the one that waited least for other ranks.
    double min_us = std::numeric_limits<double>::infinity();

    double mean_us() const { return us / static_cast<double>(count); }
  };
  /// Traced steps, 0 if none was: then `calls` is empty.
  int64_t steps = 0;
  /// Of all traced steps: by (op, mesh dim, name as CollectiveGroup has it).
  std::map<std::string, Call> calls;
  /// The median of metrics.jsonl: time a step in which the host waited for
  /// others.
  std::optional<double> comm_ms;

  /// Null if none was traced.
  const Call* find(
      const std::string& op,
      const std::string& mesh_dim,
      const std::string& name) const;
};

/// Reads trace.json and metrics.jsonl of a run's folder.
/// Throws: mesh::UsageError naming the folder if nothing was measured there or
/// its recipe.yaml describes other steps than `recipe`, and the key that
/// differs; naming the file if it cannot be read.
MeasuredRun read_measured(const std::string& folder, const Recipe& recipe);

/// "model.layers.17.mlp" and "ddp bucket 3/9" as "model.layers.*.mlp" and "ddp
/// bucket *".
std::string without_numbers(const std::string& name);

} // namespace weft::recipes
