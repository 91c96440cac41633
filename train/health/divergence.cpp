#include "train/health/divergence.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "mesh/communicator/format.h"

namespace weft::train {
namespace {

std::string describe_memory_corruption(const Divergence& found) {
  return fmt::format(
      "bits of {} changed on {} after step {}{}, when nothing writes there: "
      "memory is to be suspected",
      found.what,
      mesh::ranks_text(found.mismatched_ranks),
      found.step,
      found.is_before_update
          ? fmt::format(", before the update of step {}", found.step + 1)
          : "");
}

std::string describe_vote(const Divergence& found) {
  const auto when = fmt::format(
      "after step {}; after step {} they were equal",
      found.step,
      found.good_step);
  if (found.mismatched_ranks.empty()) {
    return fmt::format(
        "{} have different bits of {} {}. None of them are in the majority",
        mesh::ranks_text(found.tied_ranks),
        found.what,
        when);
  }
  return fmt::format(
      "{} {} other bits of {} than {} {}",
      mesh::ranks_text(found.mismatched_ranks),
      found.mismatched_ranks.size() == 1 ? "has" : "have",
      found.what,
      mesh::ranks_text(found.majority_ranks),
      when);
}

} // namespace

std::string describe(const Divergence& found) {
  auto text = found.is_memory_corruption ? describe_memory_corruption(found)
                                         : describe_vote(found);
  if (found.largest) {
    text += fmt::format(
        ". The largest difference between copies is now {:.3g}",
        *found.largest);
  }
  if (!found.nan_ranks.empty()) {
    text += fmt::format(", with NaNs on {}", mesh::ranks_text(found.nan_ranks));
  }
  return text + ".";
}

std::filesystem::path tie_record_path(const config::Recipe& recipe) {
  return std::filesystem::path(recipe.output_dir) / "integrity_check.json";
}

std::string to_json(const TieRecord& record, const config::Recipe& recipe) {
  return base::strict_json_text(
             nlohmann::ordered_json{
                 {"what", record.what},
                 {"step", record.step},
                 {"undecided", record.tied_ranks},
                 {"values", record.values},
                 {"recipe", config::to_yaml(recipe)}},
             1) +
         "\n";
}

std::optional<TieRecord> parse_tie_record(
    const std::string& json,
    const config::Recipe& recipe) {
  const auto all = base::try_parse_json(json);
  try {
    if (all.is_discarded() || all.at("recipe") != config::to_yaml(recipe)) {
      return std::nullopt;
    }
    return TieRecord{
        .what = all.at("what"),
        .step = all.at("step"),
        .tied_ranks = all.at("undecided"),
        .values = all.at("values")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string describe_replay(
    const TieRecord& record,
    const std::vector<int64_t>& now) {
  std::vector<int64_t> right;
  std::vector<int64_t> wrong;
  for (const auto rank : record.tied_ranks) {
    const auto at = static_cast<size_t>(rank);
    const bool is_same = at < now.size() && at < record.values.size() &&
                         record.values[at] == now[at];
    (is_same ? right : wrong).push_back(rank);
  }
  if (right.empty() || wrong.empty()) {
    return fmt::format(
        "integrity check: step {} is done again, and {}: what made the last "
        "run stop cannot be told",
        record.step,
        right.empty()
            ? fmt::format(
                  "each rank now has other bits of {} than any of {} had",
                  record.what,
                  mesh::ranks_text(record.tied_ranks))
            : fmt::format("the bits of {} differ again", record.what));
  }
  return fmt::format(
      "integrity check: step {} is done again, and {} {} the bits of {} that "
      "{} had: what {} had when the last run stopped was wrong",
      record.step,
      mesh::ranks_text(right),
      right.size() == 1 ? "has" : "have",
      record.what,
      right.size() == 1 ? "it" : "they",
      mesh::ranks_text(wrong));
}

} // namespace weft::train
