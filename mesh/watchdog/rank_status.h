#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/communicator/flight_recorder.h"

namespace weft::mesh {

/// One group, as one rank sees it.
struct GroupStatus {
  /// The same on all members, and of no other group.
  std::string key;
  /// What messages call it.
  std::string name;
  /// World ranks.
  std::vector<int64_t> ranks;
  /// What this rank's next collective in it will be.
  uint64_t next_sequence = 0;
  /// Those under way and the newest ones, in order.
  std::vector<FlightRecorderEntry> entries;
  /// What next_sequence was when this rank left by an exception; -1: it did
  /// not, or the group was made since.
  int64_t sequence_at_error = -1;
};

/// The entry with that number; nullptr if it is not among those told.
const FlightRecorderEntry* find_entry(
    const GroupStatus& group,
    uint64_t sequence);

/// What one rank does, as it tells the others.
struct RankStatus {
  int64_t rank = 0;
  std::vector<GroupStatus> groups;
  /// "the forward pass of step 12"; empty if nobody noted it.
  std::string activity;
  /// When it was told; entries' times are on the same clock.
  int64_t now_ns = 0;
  /// It has ended all that it had to do.
  bool has_ended = false;
  /// What it left by an exception, and which: "the forward pass by ...: ...".
  /// Empty if nothing.
  std::string step_error;
  int64_t step_error_ns = 0;
};

/// A rank's answer to an inquiry.
struct RankReply {
  /// Without one, `status` holds nothing but the rank.
  bool has_reply = false;
  RankStatus status;
  /// What is known of a rank that did not answer: "process 12 is stopped".
  std::string absence_reason;
};

/// For the store.
std::string to_text(const RankStatus& status);
/// Throws: std::exception if it is no such text.
RankStatus parse_rank_status(const std::string& text);

} // namespace weft::mesh
