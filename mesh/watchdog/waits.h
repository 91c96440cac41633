#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/watchdog/rank_status.h"

namespace weft::mesh {

/// A call that a rank waits for, and the members that have not called it.
struct Wait {
  const GroupSight* group;
  const LedgerEntry* entry;
  std::vector<int64_t> missing;
};

/// What keeps `answer`'s rank waiting, the longest wait first.
std::vector<Wait> waits_of(
    const std::vector<RankAnswer>& answers,
    const RankAnswer& answer);

/// The members that wait for the same call as `wait`.
std::vector<int64_t> waiting_with(
    const std::vector<RankAnswer>& answers,
    const Wait& wait);

/// For whom `rank` waits, and what they do: "ranks 0 to 2 have waited 15 s in
/// all_reduce #813 ... for rank 3, ...". Empty if it waits for nobody.
std::string describe_wait(const std::vector<RankAnswer>& answers, int64_t rank);

/// The ranks that answered but have not come to what `rank` waits for longest.
std::vector<int64_t> late_ranks(
    const std::vector<RankAnswer>& answers,
    int64_t rank);

/// Whether both wait in the same call: one of them is enough to say so.
bool waits_alike(
    const std::vector<RankAnswer>& answers,
    int64_t rank,
    int64_t other);

} // namespace weft::mesh
