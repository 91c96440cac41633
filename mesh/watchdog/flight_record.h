#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/communicator/flight_recorder.h"

namespace weft::mesh {

/// A group of ranks and its collectives, as one of them saw it.
struct GroupRecord {
  /// "tp/1"; the part before the slash is shown as its description.
  std::string name;
  /// "gloo", "shm", "nccl", ...
  std::string backend;
  /// World ranks, in group order.
  std::vector<int64_t> ranks;
  std::chrono::milliseconds timeout{0};
  /// What the group's next collective will have.
  uint64_t next_sequence = 0;
  /// Oldest first.
  std::vector<FlightRecorderEntry> entries;
};

/// What rank `rank` did, as JSON with the keys of PyTorch's flight recorder
/// (version 2.10). Sequence numbers are the ledger's, from 0. A parameter's
/// name is the first frame of its collective; what the ledger says itself is
/// under "weft".
/// Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp.
std::string flight_record(const std::vector<GroupRecord>& groups, int64_t rank);

} // namespace weft::mesh
