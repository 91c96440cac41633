#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/communicator/flight_recorder.h"

namespace weft::mesh {

/// A group as seen by one rank.
struct GroupStatus {
  /// The key of the group: identical on all members and unique.
  std::string key;
  /// The name of the group in messages.
  std::string name;
  /// World ranks.
  std::vector<int64_t> ranks;
  /// The sequence number of this rank's next collective in the group.
  uint64_t next_sequence = 0;
  /// The running and the newest collectives, in order.
  std::vector<FlightRecorderEntry> entries;
  /// `next_sequence` when this rank threw, or -1 if it did not or the group is
  /// newer.
  int64_t sequence_at_error = -1;
};

/// Returns the entry with the sequence number, or nullptr if it is not among
/// the entries.
const FlightRecorderEntry* find_entry(
    const GroupStatus& group,
    uint64_t sequence);

/// The state of one rank as it reports it to the others.
struct RankStatus {
  int64_t rank = 0;
  std::vector<GroupStatus> groups;
  /// The recorded activity, "the forward pass of step 12". Empty if none is
  /// recorded.
  std::string activity;
  /// The time of the report, on the clock of the entries.
  int64_t now_ns = 0;
  /// True if the rank has ended normally.
  bool has_ended = false;
  /// The part of a step that the rank left by an exception, and the exception:
  /// "the forward pass by ...: ...". Empty if none.
  std::string step_error;
  int64_t step_error_ns = 0;
};

/// The reply of a rank to an inquiry.
struct RankReply {
  /// If false, `status` has only the rank.
  bool has_reply = false;
  RankStatus status;
  /// The state of the process if the rank did not reply: "process 12 is
  /// stopped".
  std::string absence_reason;
};

/// Serializes a status for the store.
std::string to_text(const RankStatus& status);
/// Parses the result of to_text().
/// Throws: std::exception if the text is malformed.
RankStatus parse_rank_status(const std::string& text);

} // namespace weft::mesh
