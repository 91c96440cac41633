#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/recipe.h"

namespace weft::recipes {

/// What the sentinel found: ranks that must have the same do not. Ranks are
/// world ranks.
struct Divergence {
  /// "exp_avg of model.norm.weight".
  std::string what = {};
  /// Equal after this step; not after that one.
  int64_t good_step = 0;
  int64_t step = 0;
  /// Ranks have seen bits change that nothing had written: theirs are wrong,
  /// whatever the others have.
  bool is_memory_corruption = false;
  /// Found before the next update, not before a save or after an evaluation.
  bool is_before_update = true;
  std::vector<int64_t> majority_ranks = {};
  std::vector<int64_t> mismatched_ranks = {};
  /// Of whom none can be told to be wrong: as of two.
  std::vector<int64_t> tied_ranks = {};
  /// Between copies, now; none if there are no copies, or it is a number.
  std::optional<double> largest = std::nullopt;
  std::vector<int64_t> nan_ranks = {};
};

/// "rank 2 has other bits of W than ranks 0, 1 and 3 after step 13; ...", whole
/// sentences.
std::string describe(const Divergence& divergence);

/// What ranks had where none could be told to be wrong, kept in the run's
/// folder: the next run does those steps again, to the bit, and sees who was.
struct TieRecord {
  std::string what = {};
  int64_t step = 0;
  std::vector<int64_t> tied_ranks = {};
  /// Hashes by world rank.
  std::vector<int64_t> values;

  bool operator==(const TieRecord&) const = default;
};

/// RUN/sentinel.json.
std::filesystem::path tie_record_path(const Recipe& recipe);
/// As text of that file; it fits runs of this recipe only.
std::string to_json(const TieRecord& record, const Recipe& recipe);
/// None if `json` is something else or of another recipe.
std::optional<TieRecord> parse_tie_record(
    const std::string& json,
    const Recipe& recipe);

/// What the steps that were done again say about the record, with `now` the
/// values by rank.
std::string describe_replay(
    const TieRecord& record,
    const std::vector<int64_t>& now);

} // namespace weft::recipes
