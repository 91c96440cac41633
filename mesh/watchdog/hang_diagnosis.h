#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/error/failure.h"
#include "mesh/watchdog/rank_status.h"

namespace weft::mesh {

/// The reason why pending collectives of the world can never complete.
struct HangDiagnosis {
  /// The message for the user: ranks, ops, tensors, and what to do.
  std::string sentence;
  /// True if ranks called different collectives. False if a rank is lost.
  bool is_disagreement = true;

  GroupFailure failure() const { return {sentence, is_disagreement}; }
};

/// Finds the oldest call for which ranks of one group called different
/// collectives. `replies` has one element per rank.
std::optional<HangDiagnosis> find_mismatch(
    const std::vector<RankReply>& replies);

/// Finds ranks that wait for a rank that has ended.
std::optional<HangDiagnosis> find_ended(const std::vector<RankReply>& replies);

/// Finds ranks that have waited for more than 1 s for a rank that left a step
/// by an exception, unless they left at the same call.
std::optional<HangDiagnosis> find_rank_with_error(
    const std::vector<RankReply>& replies);

/// Finds a deadlock cycle: ranks that wait for each other, each in another
/// collective. The replies are of slightly different times, so the result is
/// certain only if two consecutive inquiries give the same sentence.
std::optional<HangDiagnosis> find_deadlock_cycle(
    const std::vector<RankReply>& replies);

} // namespace weft::mesh
