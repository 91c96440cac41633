#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "mesh/communicator/flight_recorder.h"
#include "train/trace/trace_recorder.h"

namespace weft::recipes {

/// What one rank did, ready to be written.
struct RankTrace {
  int64_t rank = 0;
  /// "rank 3 (dp=1 tp=1)".
  std::string title;
  /// The names of the tracks, in the order shown.
  std::map<int64_t, std::string> tracks;
  std::vector<TraceEvent> events;
  /// What is missing, if anything, in words.
  std::vector<std::string> notes;
};

/// Adds a group's collectives, which have all ended, under tracks of their
/// own from `first_track` on: those that overlap, as reductions that run beside
/// backward do, lie side by side.
void add_collectives(
    RankTrace& trace,
    const std::string& group,
    int64_t first_track,
    std::span<const mesh::FlightRecorderEntry> entries);

/// The trace in the JSON form that chrome://tracing and Perfetto open; one
/// event a line. The rank is the process.
/// Source: Trace Event Format (Google, 2016).
std::string to_chrome_json(const RankTrace& trace);

/// Joins such files to one. Ranks of one host share a clock; those of others
/// are moved by the difference of their clocks of the day. A file that cannot
/// be read leaves a note in `problems`.
std::string merge_chrome_json(
    std::span<const std::string> paths,
    std::vector<std::string>& problems);

} // namespace weft::recipes
