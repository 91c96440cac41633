#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/report/metrics_series.h"
#include "train/report/rank_share.h"

namespace weft::recipes {

/// What a run's folder holds, for its report.
struct RunData {
  /// The recipe's name, else the folder's.
  std::string label;
  std::string folder;
  MetricsSeries metrics;
  /// Dotted keys and their values as text, in the order written.
  std::vector<std::pair<std::string, std::string>> recipe;
  std::optional<RankShares> layout;
  /// train.steps; 0 if not known.
  int64_t total_steps = 0;
  /// When metrics.jsonl was last written to. Unit: seconds since the epoch.
  int64_t written = 0;
  /// In words, what is missing or odd.
  std::vector<std::string> notes;

  /// nullptr: the recipe has no such key.
  const std::string* recipe_value(std::string_view key) const;
};

/// Reads what is there: a recipe or layout that is missing or damaged leaves a
/// note.
/// Throws: mesh::UsageError naming the folder if it is none, or not a run's.
RunData read_run(const std::string& folder);

/// A key on which recipes differ, and its value in each run, if it has it.
struct RecipeDifference {
  std::string key;
  std::vector<std::optional<std::string>> values;
};

/// In the order of the recipes; what names the run, its name and folder, is
/// left out.
std::vector<RecipeDifference> recipe_differences(std::span<const RunData> runs);

} // namespace weft::recipes
