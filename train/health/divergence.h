#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/recipe.h"

namespace weft::train {

/// A difference found by the integrity check between values that must be
/// identical on several ranks. Ranks are world ranks.
struct Divergence {
  /// The name of the tensor or number: "exp_avg of model.norm.weight".
  std::string what = {};
  /// The last recorded step after which the copies were equal. They differ
  /// after `step`.
  int64_t good_step = 0;
  int64_t step = 0;
  /// True if bits changed on some ranks without a write. The values of these
  /// ranks are wrong, even if they equal those of other ranks.
  bool is_memory_corruption = false;
  /// True if memory corruption was found before the next update, false if
  /// before a save or after an evaluation.
  bool is_before_update = true;
  std::vector<int64_t> majority_ranks = {};
  std::vector<int64_t> mismatched_ranks = {};
  /// The ranks that differ without a majority, for example two replicas. None
  /// of them can be identified as wrong.
  std::vector<int64_t> tied_ranks = {};
  /// The largest current difference between copies. Empty if there are no
  /// copies or if the value is a number instead of a tensor.
  std::optional<double> largest = std::nullopt;
  std::vector<int64_t> nan_ranks = {};
};

/// Describes the difference in sentences: "rank 2 has other bits of W than
/// ranks 0, 1 and 3 after step 13; ...".
std::string describe(const Divergence& divergence);

/// The hashes of a tied vote, which identified no wrong rank. Stored in the
/// run's folder: the resumed run repeats these steps bitwise and reports which
/// ranks were wrong.
struct TieRecord {
  std::string what = {};
  int64_t step = 0;
  std::vector<int64_t> tied_ranks = {};
  /// The hashes by world rank.
  std::vector<int64_t> values;

  bool operator==(const TieRecord&) const = default;
};

/// Returns RUN/integrity_check.json.
std::filesystem::path tie_record_path(const config::Recipe& recipe);
/// Returns the content of the record's file. Only runs of the same recipe read
/// it.
std::string to_json(const TieRecord& record, const config::Recipe& recipe);
/// Returns the record in `json`. Empty if `json` is malformed or belongs to
/// another recipe.
std::optional<TieRecord> parse_tie_record(
    const std::string& json,
    const config::Recipe& recipe);

/// Describes the comparison of the record with the repeated step. `now` has the
/// new hashes by rank.
std::string describe_replay(
    const TieRecord& record,
    const std::vector<int64_t>& now);

} // namespace weft::train
