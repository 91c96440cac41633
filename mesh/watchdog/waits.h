#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/watchdog/rank_status.h"

namespace weft::mesh {

/// A collective that a rank waits for, and the members that have not called it.
struct Wait {
  const GroupStatus* group;
  const FlightRecorderEntry* entry;
  std::vector<int64_t> missing;
};

/// Returns the waits of `reply`'s rank, longest first.
std::vector<Wait> waits_of(
    const std::vector<RankReply>& replies,
    const RankReply& reply);

/// Returns the members that wait for the same collective as `wait`.
std::vector<int64_t> waiting_with(
    const std::vector<RankReply>& replies,
    const Wait& wait);

/// Describes which ranks `rank` waits for and what these do: "ranks 0 to 2 have
/// waited 15 s in all_reduce #813 ... for rank 3, ...". Empty if it waits for
/// none.
std::string describe_wait(const std::vector<RankReply>& replies, int64_t rank);

/// Describes which members of the groups of `rank` did not reply or, if all
/// did, which have called fewer collectives than `rank`. For failures on a
/// device, where no thread waits. Empty if there are none.
std::string describe_behind(
    const std::vector<RankReply>& replies,
    int64_t rank);

/// Returns the ranks that replied but have not called the collective that
/// `rank` has waited for longest.
std::vector<int64_t> late_ranks(
    const std::vector<RankReply>& replies,
    int64_t rank);

/// Returns true if both ranks wait in the same collective.
bool wait_in_same_call(
    const std::vector<RankReply>& replies,
    int64_t rank,
    int64_t other);

} // namespace weft::mesh
