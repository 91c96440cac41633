#include "mesh/watchdog/hang_diagnosis.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "mesh/communicator/format.h"
#include "mesh/error/error.h"
#include "mesh/watchdog/waits.h"

namespace weft::mesh {
namespace {

class DeadlockSearch {
 public:
  explicit DeadlockSearch(const std::vector<RankReply>& replies)
      : answers_(replies), is_done_(replies.size(), false) {}

  std::vector<std::pair<int64_t, Wait>> find() {
    for (size_t rank = 0; rank < answers_.size(); ++rank) {
      if (visit(static_cast<int64_t>(rank))) {
        return path_;
      }
    }
    return {};
  }

 private:
  bool visit(int64_t rank) {
    const auto start = std::ranges::find(
        path_, rank, [](const auto& step) { return step.first; });
    if (start != path_.end()) {
      path_.erase(path_.begin(), start);
      return true;
    }
    const auto& reply = answers_[static_cast<size_t>(rank)];
    if (is_done_[static_cast<size_t>(rank)] || !reply.has_reply) {
      return false;
    }
    for (const auto& wait : waits_of(answers_, reply)) {
      for (const int64_t missing : wait.missing) {
        path_.emplace_back(rank, wait);
        if (visit(missing)) {
          return true;
        }
        path_.pop_back();
      }
    }
    is_done_[static_cast<size_t>(rank)] = true;
    return false;
  }

  const std::vector<RankReply>& answers_;
  std::vector<bool> is_done_;
  std::vector<std::pair<int64_t, Wait>> path_;
};

} // namespace

std::optional<HangDiagnosis> find_ended(const std::vector<RankReply>& replies) {
  for (const auto& reply : replies) {
    for (const auto& wait : waits_of(replies, reply)) {
      for (const int64_t rank : wait.missing) {
        if (!replies[static_cast<size_t>(rank)].status.has_ended) {
          continue;
        }
        const auto waiting = waiting_with(replies, wait);
        return HangDiagnosis{detail::concat(
            "Rank ",
            rank,
            " has ended, but ",
            ranks_text(waiting),
            waiting.size() == 1 ? " waits" : " wait",
            " for it in ",
            call_text(*wait.entry),
            " of group \"",
            wait.group->name,
            "\". ",
            kSameCalls)};
      }
    }
  }
  return std::nullopt;
}

namespace {

using std::chrono::nanoseconds;

/// The time for which a rank that left a step by an exception may still
/// continue.
constexpr nanoseconds kReturnLimit = std::chrono::seconds(1);

/// Returns true if the rank left a step by an exception at least kReturnLimit
/// ago and has started no collective since.
bool has_departed(const RankStatus& status) {
  return !status.step_error.empty() &&
         nanoseconds(status.now_ns - status.step_error_ns) >= kReturnLimit &&
         std::ranges::all_of(status.groups, [](const GroupStatus& group) {
           return group.sequence_at_error ==
                  static_cast<int64_t>(group.next_sequence);
         });
}

/// Returns true if both ranks left by an exception before the same call of the
/// group `key`.
bool left_alike(
    const RankStatus& one,
    const RankStatus& other,
    const std::string& key) {
  const auto sequence_at_error = [&](const RankStatus& status) {
    const auto group = std::ranges::find(status.groups, key, &GroupStatus::key);
    return group == status.groups.end() ? int64_t{-1}
                                        : group->sequence_at_error;
  };
  return sequence_at_error(one) >= 0 &&
         sequence_at_error(one) == sequence_at_error(other);
}

} // namespace

std::optional<HangDiagnosis> find_rank_with_error(
    const std::vector<RankReply>& replies) {
  for (const auto& reply : replies) {
    for (const auto& wait : waits_of(replies, reply)) {
      const nanoseconds waited(reply.status.now_ns - wait.entry->wait_ns);
      for (const int64_t rank : wait.missing) {
        const auto& status = replies[static_cast<size_t>(rank)].status;
        if (waited < kReturnLimit || !has_departed(status) ||
            left_alike(reply.status, status, wait.group->key)) {
          continue;
        }
        const auto waiting = waiting_with(replies, wait);
        return HangDiagnosis{
            detail::concat(
                "Rank ",
                rank,
                " left ",
                status.step_error,
                ". ",
                "It was waited for by ",
                ranks_text(waiting),
                " in ",
                call_text(*wait.entry),
                " of group \"",
                wait.group->name,
                "\""),
            /*is_disagreement=*/false};
      }
    }
  }
  return std::nullopt;
}

std::optional<HangDiagnosis> find_deadlock_cycle(
    const std::vector<RankReply>& replies) {
  const auto cycle = DeadlockSearch(replies).find();
  if (cycle.empty()) {
    return std::nullopt;
  }
  std::string text = "Ranks wait for each other: ";
  for (size_t i = 0; i < cycle.size(); ++i) {
    const auto& [rank, wait] = cycle[i];
    const int64_t next = cycle[(i + 1) % cycle.size()].first;
    text += detail::concat(
        i == 0 ? "" : ", ",
        "rank ",
        rank,
        " in ",
        call_text(*wait.entry),
        " of group \"",
        wait.group->name,
        "\" for rank ",
        next);
  }
  return HangDiagnosis{text + ". " + kSameCalls};
}

} // namespace weft::mesh
