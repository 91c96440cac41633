#include "mesh/watch/verdict.h"

#include <algorithm>
#include <utility>

#include "mesh/error.h"
#include "mesh/watch/waits.h"
#include "mesh/watch/wording.h"

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
