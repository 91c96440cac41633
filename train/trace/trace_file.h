#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "mesh/communicator/flight_recorder.h"
#include "train/trace/trace_recorder.h"

namespace weft::train {

/// The spans of one rank, ready to be written.
struct RankTrace {
  int64_t rank = 0;
  /// The title of the rank: "rank 3 (dp=1 tp=1)".
  std::string title;
  /// The names of the tracks by track number, in the order shown.
  std::map<int64_t, std::string> tracks;
  std::vector<TraceEvent> events;
  /// Notes about missing data, as text.
  std::vector<std::string> notes;
};

/// Adds the completed collectives of a group on tracks from `first_track` on.
/// Collectives that overlap, such as reductions during backward, get separate
/// tracks.
void add_collectives(
    RankTrace& trace,
    const std::string& group,
    int64_t first_track,
    std::span<const mesh::FlightRecorderEntry> entries);

/// Returns the trace in the JSON format of chrome://tracing and Perfetto, with
/// one event per line. Each rank is a process.
/// Source: Trace Event Format (Google, 2016).
std::string to_chrome_json(const RankTrace& trace);

/// Merges files of to_chrome_json(). Ranks of one host share a clock; the times
/// of other hosts are shifted by the difference of their wall clocks. Adds a
/// note to `problems` for each file that cannot be read.
std::string merge_chrome_json(
    std::span<const std::string> paths,
    std::vector<std::string>& problems);

} // namespace weft::train
