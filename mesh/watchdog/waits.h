#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/watchdog/rank_status.h"

namespace weft::mesh {

/// A call that a rank waits for, and the members that have not called it.
struct Wait {
  const GroupStatus* group;
  const FlightRecorderEntry* entry;
  std::vector<int64_t> missing;
};

/// What keeps `reply`'s rank waiting, the longest wait first.
std::vector<Wait> waits_of(
    const std::vector<RankReply>& replies,
    const RankReply& reply);

/// The members that wait for the same call as `wait`.
std::vector<int64_t> waiting_with(
    const std::vector<RankReply>& replies,
    const Wait& wait);

/// For whom `rank` waits, and what they do: "ranks 0 to 2 have waited 15 s in
/// all_reduce #813 ... for rank 3, ...". Empty if it waits for nobody.
std::string describe_wait(const std::vector<RankReply>& replies, int64_t rank);

/// The ranks that answered but have not come to what `rank` waits for longest.
std::vector<int64_t> late_ranks(
    const std::vector<RankReply>& replies,
    int64_t rank);

/// Whether both wait in the same call: one of them is enough to say so.
bool wait_in_same_call(
    const std::vector<RankReply>& replies,
    int64_t rank,
    int64_t other);

} // namespace weft::mesh
