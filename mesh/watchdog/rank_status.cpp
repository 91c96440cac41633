#include "mesh/watchdog/rank_status.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace weft::mesh {
namespace {

using nlohmann::json;

json to_json(const FlightRecorderEntry& entry) {
  return {
      {"sequence", entry.sequence},
      {"op", entry.op},
      {"name", entry.name},
      {"shape", entry.shape},
      {"dtype", static_cast<int>(entry.dtype)},
      {"argument", entry.argument},
      {"bytes", entry.bytes},
      {"caller", entry.caller},
      {"parts", entry.parts},
      {"identity", entry.identity},
      {"start_ns", entry.start_ns},
      {"end_ns", entry.end_ns},
      {"wait_ns", entry.wait_ns}};
}

FlightRecorderEntry entry_from(const json& value) {
  FlightRecorderEntry entry;
  entry.sequence = value.at("sequence");
  entry.op = value.at("op");
  entry.name = value.at("name");
  entry.shape = value.at("shape").get<std::vector<int64_t>>();
  entry.dtype = static_cast<c10::ScalarType>(value.at("dtype").get<int>());
  entry.argument = value.at("argument");
  entry.bytes = value.at("bytes");
  entry.caller = value.at("caller");
  entry.parts = value.at("parts").get<std::vector<int64_t>>();
  entry.identity = value.at("identity");
  entry.start_ns = value.at("start_ns");
  entry.end_ns = value.at("end_ns");
  entry.wait_ns = value.at("wait_ns");
  return entry;
}

json to_json(const GroupStatus& group) {
  auto entries = json::array();
  for (const auto& entry : group.entries) {
    entries.push_back(to_json(entry));
  }
  return {
      {"key", group.key},
      {"name", group.name},
      {"ranks", group.ranks},
      {"next_sequence", group.next_sequence},
      {"left_at", group.sequence_at_error},
      {"entries", std::move(entries)}};
}

GroupStatus group_from(const json& value) {
  GroupStatus group;
  group.key = value.at("key");
  group.name = value.at("name");
  group.ranks = value.at("ranks").get<std::vector<int64_t>>();
  group.next_sequence = value.at("next_sequence");
  group.sequence_at_error = value.at("left_at");
  for (const auto& entry : value.at("entries")) {
    group.entries.push_back(entry_from(entry));
  }
  return group;
}

} // namespace

const FlightRecorderEntry* find_entry(
    const GroupStatus& group,
    uint64_t sequence) {
  const auto entry = std::ranges::find(
      group.entries, sequence, [](const auto& e) { return e.sequence; });
  return entry == group.entries.end() ? nullptr : &*entry;
}

std::string to_text(const RankStatus& status) {
  auto groups = json::array();
  for (const auto& group : status.groups) {
    groups.push_back(to_json(group));
  }
  // json_text() also accepts names that are not UTF-8.
  return base::json_text(json{
      {"rank", status.rank},
      {"groups", std::move(groups)},
      {"activity", status.activity},
      {"now_ns", status.now_ns},
      {"has_ended", status.has_ended},
      {"departure", status.step_error},
      {"departed_ns", status.step_error_ns}});
}

RankStatus parse_rank_status(const std::string& text) {
  const auto value = base::parse_json(text);
  RankStatus status;
  status.rank = value.at("rank");
  for (const auto& group : value.at("groups")) {
    status.groups.push_back(group_from(group));
  }
  status.activity = value.at("activity");
  status.now_ns = value.at("now_ns");
  status.has_ended = value.at("has_ended");
  status.step_error = value.at("departure");
  status.step_error_ns = value.at("departed_ns");
  return status;
}

} // namespace weft::mesh
