#include "mesh/watchdog/flight_record.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json_text.h"

namespace weft::mesh {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFlightVersion = "2.10";
constexpr double kNanosecondsPerMillisecond = 1e6;

/// Returns the nanoseconds to add to a time of the flight recorders' clock to
/// get the time since the epoch.
int64_t wall_clock_offset_ns() {
  using std::chrono::nanoseconds;
  const nanoseconds wall = std::chrono::system_clock::now().time_since_epoch();
  const nanoseconds steady =
      std::chrono::steady_clock::now().time_since_epoch();
  return (wall - steady).count();
}

/// Returns the name of an op for PyTorch's flight recorder analyzer, which
/// knows no other names. The analyzer accepts sizes that differ between ranks
/// only if the name ends in "_v".
std::string_view known_op(std::string_view op) {
  using Names = std::pair<std::string_view, std::string_view>;
  constexpr std::array<Names, 6> kNames{{
      {"all_gather_uneven", "all_gather_v"},
      {"reduce_scatter_uneven", "reduce_scatter_v"},
      {"all_reduce_coalesced", "allreduce_coalesced"},
      {"all_gather_coalesced", "allgather_coalesced"},
      {"reduce_scatter_coalesced", "REDUCE_SCATTER_coalesced"},
      {"broadcast_coalesced", "broadcast"},
  }};
  const auto* found = std::ranges::find(kNames, op, &Names::first);
  return found == kNames.end() ? op : found->second;
}

/// Returns "nccl" or "gloo", because older versions of the analyzer refuse
/// other libraries.
std::string_view known_library(std::string_view backend) {
  return backend == "nccl" ? "nccl" : "gloo";
}

struct Sizes {
  std::vector<std::vector<int64_t>> inputs;
  std::vector<std::vector<int64_t>> outputs;
};

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

/// Returns sizes that are equal on all ranks that made the same call. The size
/// of uneven parts is that of the full tensor.
Sizes sizes_of(const FlightRecorderEntry& call, const GroupRecord& group) {
  const auto ranks = static_cast<int64_t>(group.ranks.size());
  const int64_t whole =
      call.bytes / static_cast<int64_t>(c10::elementSize(call.dtype));
  if (call.op == "barrier") {
    return {};
  }
  if (call.op == "all_gather") {
    return {{call.shape}, {{whole}}};
  }
  if (call.op == "reduce_scatter" && ranks > 0) {
    return {{call.shape}, {{whole / ranks}}};
  }
  if (call.op.ends_with("_uneven")) {
    return {{{whole}}, {{whole}}};
  }
  if (call.op == "all_to_all" && call.parts.size() == 2 * group.ranks.size()) {
    const std::span<const int64_t> parts(call.parts);
    return {
        {{sum_of(parts.first(group.ranks.size()))}},
        {{sum_of(parts.last(group.ranks.size()))}}};
  }
  return {{call.shape}, {call.shape}};
}

/// A group, its name, which is the same on every rank and unique, and its
/// number on this rank.
struct NamedGroup {
  const GroupRecord* record = nullptr;
  std::string name;
  int64_t number = 0;

  std::string description() const {
    return record->name.substr(0, record->name.find('/'));
  }
};

/// Numbers the later groups of a repeated name, because the analyzer takes
/// groups of one name for the same group.
std::vector<NamedGroup> name_groups(const std::vector<GroupRecord>& groups) {
  std::vector<NamedGroup> named;
  std::map<std::string, int64_t> uses;
  for (const auto& group : groups) {
    const int64_t use = ++uses[group.name];
    named.push_back(
        {&group,
         use == 1 ? group.name : group.name + "#" + std::to_string(use),
         static_cast<int64_t>(named.size())});
  }
  return named;
}

std::string ranks_list(const std::vector<int64_t>& ranks) {
  std::string list = "[";
  for (const int64_t rank : ranks) {
    list += (list.size() > 1 ? ", " : "") + std::to_string(rank);
  }
  return list + "]";
}

Json group_config(const NamedGroup& group) {
  return {
      {"name", group.name},
      {"desc", group.description()},
      {"ranks", ranks_list(group.record->ranks)},
      {"backend", group.record->backend}};
}

/// Returns the sequence numbers of the newest calls. -1 means that there is
/// none.
Json group_status(const GroupRecord& group) {
  int64_t completed = -1;
  for (const auto& call : group.entries) {
    if (call.end_ns != 0) {
      completed = std::max(completed, static_cast<int64_t>(call.sequence));
    }
  }
  const auto newest = static_cast<int64_t>(group.next_sequence) - 1;
  return {
      {"last_enqueued_collective", newest},
      {"last_started_collective", newest},
      {"last_completed_collective", completed}};
}

struct Call {
  const NamedGroup* group = nullptr;
  const FlightRecorderEntry* entry = nullptr;
};

/// Returns the calls of all groups in order of time, beginning where every ring
/// buffer is complete.
std::vector<Call> merge_calls(const std::vector<NamedGroup>& groups) {
  int64_t complete_from = 0;
  std::vector<Call> calls;
  for (const auto& group : groups) {
    const auto& entries = group.record->entries;
    if (!entries.empty() && entries.front().sequence > 0) {
      complete_from = std::max(complete_from, entries.front().start_ns);
    }
    for (const auto& entry : entries) {
      calls.push_back({&group, &entry});
    }
  }
  std::erase_if(calls, [&](const Call& call) {
    return call.entry->start_ns < complete_from;
  });
  std::ranges::stable_sort(
      calls, {}, [](const Call& call) { return call.entry->start_ns; });
  return calls;
}

Json frames_of(const Call& call) {
  const std::string& name = call.entry->name;
  Json frame;
  frame["name"] = name.empty() ? "(no name)" : name;
  frame["filename"] = call.entry->op + " in group " + call.group->name;
  frame["line"] = call.entry->sequence;
  return Json::array({std::move(frame)});
}

Json times_of(const Call& call, int64_t offset_ns) {
  const FlightRecorderEntry& entry = *call.entry;
  const bool has_ended = entry.end_ns != 0;
  Json times;
  times["time_created_ns"] = entry.start_ns + offset_ns;
  times["time_discovered_started_ns"] = entry.start_ns + offset_ns;
  times["time_discovered_completed_ns"] =
      has_ended ? Json(entry.end_ns + offset_ns) : Json();
  if (has_ended) {
    times["duration_ms"] = static_cast<double>(entry.end_ns - entry.start_ns) /
                           kNanosecondsPerMillisecond;
  }
  times["timeout_ms"] = call.group->record->timeout.count();
  times["state"] = has_ended ? "completed" : "started";
  times["retired"] = has_ended;
  return times;
}

Json describe(const Call& call, int64_t record_id, int64_t offset_ns) {
  const FlightRecorderEntry& entry = *call.entry;
  const auto& group = *call.group;
  const auto sizes = sizes_of(entry, *group.record);
  const std::string dtype = c10::toString(entry.dtype);
  Json record;
  record["frames"] = frames_of(call);
  record["record_id"] = record_id;
  record["pg_id"] = group.number;
  record["process_group"] = {group.name, group.description()};
  record["collective_seq_id"] = entry.sequence;
  record["p2p_seq_id"] = 0;
  record["op_id"] = entry.sequence;
  record["profiling_name"] = std::string(known_library(group.record->backend)) +
                             ":" + std::string(known_op(entry.op));
  record["input_sizes"] = sizes.inputs;
  record["input_dtypes"] = std::vector<std::string>(sizes.inputs.size(), dtype);
  record["output_sizes"] = sizes.outputs;
  record["output_dtypes"] =
      std::vector<std::string>(sizes.outputs.size(), dtype);
  record["is_p2p"] = false;
  record.update(times_of(call, offset_ns));
  record["weft"] = {
      {"op", entry.op},
      {"name", entry.name},
      {"shape", entry.shape},
      {"bytes", entry.bytes}};
  return record;
}

/// Returns the number of the first of the `kept` newest calls among all calls
/// that this rank has made. So the analyzer can compare ranks whose ring
/// buffers have lost different calls.
int64_t first_record_id(const std::vector<GroupRecord>& groups, size_t kept) {
  uint64_t all = 0;
  for (const auto& group : groups) {
    all += group.next_sequence;
  }
  return static_cast<int64_t>(all - std::min<uint64_t>(all, kept));
}

} // namespace

std::string flight_record(
    const std::vector<GroupRecord>& groups,
    int64_t rank) {
  const int64_t offset_ns = wall_clock_offset_ns();
  const auto named = name_groups(groups);
  const auto calls = merge_calls(named);
  Json record;
  record["version"] = kFlightVersion;
  record["comm_lib_version"] = "weft";
  record["rank"] = rank;
  record["pg_config"] = Json::object();
  record["pg_status"] = Json::object();
  for (const auto& group : named) {
    record["pg_config"][group.name] = group_config(group);
    record["pg_status"][std::to_string(group.number)] =
        group_status(*group.record);
  }
  int64_t id = first_record_id(groups, calls.size());
  Json entries = Json::array();
  for (const auto& call : calls) {
    entries.push_back(describe(call, id++, offset_ns));
  }
  record["entries"] = std::move(entries);
  // json_text() replaces bytes that are not UTF-8: names may contain them, and
  // JSON readers would refuse the file.
  return base::json_text(record);
}

} // namespace weft::mesh
