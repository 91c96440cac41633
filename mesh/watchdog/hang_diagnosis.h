#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mesh/error/failure.h"
#include "mesh/watchdog/rank_status.h"

namespace weft::mesh {

/// Why no collective of the world will come to its end.
struct HangDiagnosis {
  /// For a user: ranks, ops, tensors, and what to do.
  std::string sentence;
  /// Ranks called different things; otherwise one is as good as lost.
  bool is_disagreement = true;

  GroupFailure failure() const { return {sentence, is_disagreement}; }
};

/// Ranks of one group that called different things as the same number; the
/// oldest such call. `replies`: one a rank.
std::optional<HangDiagnosis> find_mismatch(
    const std::vector<RankReply>& replies);

/// Ranks that wait for one that has ended.
std::optional<HangDiagnosis> find_ended(const std::vector<RankReply>& replies);

/// Ranks that have waited for a second for one that left by an exception, and
/// did not themselves leave at the same call.
std::optional<HangDiagnosis> find_rank_with_error(
    const std::vector<RankReply>& replies);

/// Ranks that wait for each other in a circle, each in another collective. The
/// answers are of slightly different moments: certain if two inquiries in a row
/// give the same sentence.
std::optional<HangDiagnosis> find_deadlock_cycle(
    const std::vector<RankReply>& replies);

} // namespace weft::mesh
