#include "mesh/watchdog/hang_diagnosis.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "mesh/communicator/format.h"
#include "mesh/error/error.h"
#include "mesh/watchdog/waits.h"

namespace weft::mesh {
namespace {

/// Looks for a way from a rank back to itself.
class CircleSearch {
 public:
  explicit CircleSearch(const std::vector<RankAnswer>& answers)
      : answers_(answers), is_done_(answers.size(), false) {}

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
    const auto& answer = answers_[static_cast<size_t>(rank)];
    if (is_done_[static_cast<size_t>(rank)] || !answer.came) {
      return false;
    }
    for (const auto& wait : waits_of(answers_, answer)) {
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

  const std::vector<RankAnswer>& answers_;
  std::vector<bool> is_done_;
  std::vector<std::pair<int64_t, Wait>> path_;
};

} // namespace

std::optional<Verdict> find_ended(const std::vector<RankAnswer>& answers) {
  for (const auto& answer : answers) {
    for (const auto& wait : waits_of(answers, answer)) {
      for (const int64_t rank : wait.missing) {
        if (!answers[static_cast<size_t>(rank)].sight.has_ended) {
          continue;
        }
        const auto waiting = waiting_with(answers, wait);
        return Verdict{detail::concat(
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

/// How long a rank is waited for that left by an exception and may go on.
constexpr nanoseconds kReturnLimit = std::chrono::seconds(1);

/// Left by an exception, long ago, and called nothing since.
bool has_departed(const RankSight& sight) {
  return !sight.departure.empty() &&
         nanoseconds(sight.now_ns - sight.departed_ns) >= kReturnLimit &&
         std::ranges::all_of(sight.groups, [](const GroupSight& group) {
           return group.left_at == static_cast<int64_t>(group.next_sequence);
         });
}

/// Whether both left by an exception before the same call of that group.
bool left_alike(
    const RankSight& one,
    const RankSight& other,
    const std::string& key) {
  const auto left_at = [&](const RankSight& sight) {
    const auto group = std::ranges::find(sight.groups, key, &GroupSight::key);
    return group == sight.groups.end() ? int64_t{-1} : group->left_at;
  };
  return left_at(one) >= 0 && left_at(one) == left_at(other);
}

} // namespace

std::optional<Verdict> find_departed(const std::vector<RankAnswer>& answers) {
  for (const auto& answer : answers) {
    for (const auto& wait : waits_of(answers, answer)) {
      const nanoseconds waited(answer.sight.now_ns - wait.entry->wait_ns);
      for (const int64_t rank : wait.missing) {
        const auto& sight = answers[static_cast<size_t>(rank)].sight;
        if (waited < kReturnLimit || !has_departed(sight) ||
            left_alike(answer.sight, sight, wait.group->key)) {
          continue;
        }
        const auto waiting = waiting_with(answers, wait);
        return Verdict{
            detail::concat(
                "Rank ",
                rank,
                " left ",
                sight.departure,
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

std::optional<Verdict> find_circle(const std::vector<RankAnswer>& answers) {
  const auto circle = CircleSearch(answers).find();
  if (circle.empty()) {
    return std::nullopt;
  }
  std::string text = "Ranks wait for each other: ";
  for (size_t i = 0; i < circle.size(); ++i) {
    const auto& [rank, wait] = circle[i];
    const int64_t next = circle[(i + 1) % circle.size()].first;
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
  return Verdict{text + ". " + kSameCalls};
}

} // namespace weft::mesh
