#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/metrics/quorum_log.h"
#include "train/report/metrics_series.h"
#include "train/report/rank_share.h"

namespace weft::train {

/// The content of a run's folder, for its report.
struct RunData {
  /// The name of the recipe, or of the folder if the recipe has none.
  std::string label;
  std::string folder;
  MetricsSeries metrics;
  /// The dotted keys and their values as text, in the order of the file.
  std::vector<std::pair<std::string, std::string>> recipe;
  std::optional<RankShares> layout;
  /// The replica groups of an elastic run.
  std::vector<QuorumEntry> quorums;
  /// The value of train.steps. 0 means unknown.
  int64_t total_steps = 0;
  /// The time at which metrics.jsonl was last modified.
  /// Unit: seconds since the epoch.
  int64_t written = 0;
  /// Warnings about missing or damaged files, as text.
  std::vector<std::string> notes;

  /// Returns the value of `key`, or nullptr if the recipe has no such key.
  const std::string* recipe_value(std::string_view key) const;
};

/// Reads a run's folder. A missing recipe, or a damaged recipe or layout, only
/// adds a note.
/// Throws: mesh::UsageError with the folder if it is not a folder or not that
/// of a run.
RunData read_run(const std::string& folder);

/// A key on which recipes differ, and its value in each run. A value is empty
/// if the run does not have the key.
struct RecipeDifference {
  std::string key;
  std::vector<std::optional<std::string>> values;
};

/// Returns the keys whose values differ, in the order of the recipes. The run's
/// name and output_dir are left out.
std::vector<RecipeDifference> recipe_differences(std::span<const RunData> runs);

} // namespace weft::train
