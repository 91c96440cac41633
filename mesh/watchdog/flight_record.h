#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/communicator/flight_recorder.h"

namespace weft::mesh {

/// A group of ranks and its collectives as seen by one rank.
struct GroupRecord {
  /// The group's name, "tp/1". The part before the slash becomes its
  /// description.
  std::string name;
  /// The backend: "gloo", "shm", "nccl", ...
  std::string backend;
  /// World ranks, in group order.
  std::vector<int64_t> ranks;
  std::chrono::milliseconds timeout{0};
  /// The sequence number of the group's next collective.
  uint64_t next_sequence = 0;
  /// Oldest first.
  std::vector<FlightRecorderEntry> entries;
};

/// Returns the collectives of `rank` as JSON with the keys of PyTorch's flight
/// recorder (version 2.10). Sequence numbers count from 0. The name of the data
/// is the first frame of its collective; the fields that only Weft has are
/// under "weft".
/// Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp.
std::string flight_record(const std::vector<GroupRecord>& groups, int64_t rank);

} // namespace weft::mesh
