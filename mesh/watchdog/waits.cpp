#include "mesh/watchdog/waits.h"

#include <algorithm>
#include <utility>

#include "mesh/communicator/format.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

/// The call of this group that a thread has waited for longest.
const LedgerEntry* longest_wait(const GroupSight& group) {
  const LedgerEntry* found = nullptr;
  for (const auto& entry : group.entries) {
    if (entry.wait_ns > 0 && (!found || entry.wait_ns < found->wait_ns)) {
      found = &entry;
    }
  }
  return found;
}

const GroupSight* sight_of(const RankAnswer& answer, const std::string& key) {
  const auto& groups = answer.sight.groups;
  const auto group =
      std::ranges::find(groups, key, [](const auto& g) { return g.key; });
  return group == groups.end() ? nullptr : &*group;
}

/// What a rank does that another waits for.
std::string doing_text(
    const std::vector<RankAnswer>& answers,
    int64_t rank,
    const Wait& waited_for) {
  const auto& answer = answers[static_cast<size_t>(rank)];
  const auto& sight = answer.sight;
  if (!answer.came) {
    return "gives no sign of life" +
           (answer.absence.empty() ? "" : " (" + answer.absence + ")");
  }
  std::string text;
  if (!sight.activity.empty()) {
    text = "is in " + sight.activity;
  }
  if (const auto own = waits_of(answers, answer); !own.empty()) {
    const auto& wait = own.front();
    return text + (text.empty() ? "" : ", and ") + "waits in " +
           call_text(*wait.entry) + " of group \"" + wait.group->name + "\"" +
           (wait.missing.empty() ? "" : " for " + ranks_text(wait.missing));
  }
  const auto* group = sight_of(answer, waited_for.group->key);
  if (!group) {
    return (text.empty() ? "" : text + ", and ") + "has not made the group";
  }
  const auto* last = group->next_sequence == 0
                         ? nullptr
                         : find_entry(*group, group->next_sequence - 1);
  if (text.empty()) {
    text = "computes";
  }
  return last ? text + ", and " +
                    (last->end_ns == 0 ? "is at " : "was last at ") +
                    call_text(*last)
              : text;
}

/// Those that are waited for, those that they wait for, and so on.
std::vector<int64_t> chain_of(
    const std::vector<RankAnswer>& answers,
    const Wait& wait) {
  auto chain = wait.missing;
  for (size_t i = 0; i < chain.size(); ++i) {
    const auto& next = answers[static_cast<size_t>(chain[i])];
    for (const auto& further : waits_of(answers, next)) {
      for (const int64_t rank : further.missing) {
        if (std::ranges::find(chain, rank) == chain.end()) {
          chain.push_back(rank);
        }
      }
    }
  }
  return chain;
}

} // namespace

std::vector<Wait> waits_of(
    const std::vector<RankAnswer>& answers,
    const RankAnswer& answer) {
  std::vector<Wait> waits;
  for (const auto& group : answer.sight.groups) {
    const auto* entry = longest_wait(group);
    if (!entry) {
      continue;
    }
    Wait wait{&group, entry, {}};
    for (const int64_t rank : group.ranks) {
      const auto& other = answers[static_cast<size_t>(rank)];
      const auto* theirs = sight_of(other, group.key);
      if (!theirs || theirs->next_sequence <= entry->sequence) {
        wait.missing.push_back(rank);
      }
    }
    waits.push_back(std::move(wait));
  }
  std::ranges::sort(
      waits, {}, [](const auto& wait) { return wait.entry->wait_ns; });
  return waits;
}

std::vector<int64_t> waiting_with(
    const std::vector<RankAnswer>& answers,
    const Wait& wait) {
  std::vector<int64_t> ranks;
  for (const int64_t rank : wait.group->ranks) {
    const auto* group =
        sight_of(answers[static_cast<size_t>(rank)], wait.group->key);
    const auto* entry =
        group ? find_entry(*group, wait.entry->sequence) : nullptr;
    if (entry && entry->wait_ns > 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<int64_t> late_ranks(
    const std::vector<RankAnswer>& answers,
    int64_t rank) {
  const auto waits = waits_of(answers, answers[static_cast<size_t>(rank)]);
  auto late = waits.empty() ? std::vector<int64_t>() : waits.front().missing;
  std::erase_if(late, [&](int64_t other) {
    return !answers[static_cast<size_t>(other)].came;
  });
  return late;
}

bool waits_alike(
    const std::vector<RankAnswer>& answers,
    int64_t rank,
    int64_t other) {
  const auto ours = waits_of(answers, answers[static_cast<size_t>(rank)]);
  const auto theirs = waits_of(answers, answers[static_cast<size_t>(other)]);
  return !ours.empty() && !theirs.empty() &&
         ours.front().group->key == theirs.front().group->key &&
         ours.front().entry->sequence == theirs.front().entry->sequence;
}

std::string describe_wait(
    const std::vector<RankAnswer>& answers,
    int64_t rank) {
  const auto& own = answers[static_cast<size_t>(rank)];
  for (const auto& wait : waits_of(answers, own)) {
    if (wait.missing.empty()) {
      continue;
    }
    const auto waiting = waiting_with(answers, wait);
    std::string text = detail::concat(
        ranks_text(waiting),
        waiting.size() == 1 ? " has waited " : " have waited ",
        seconds_text(own.sight.now_ns - wait.entry->wait_ns),
        " in ",
        call_text(*wait.entry),
        " of group \"",
        wait.group->name,
        "\" for ",
        ranks_text(wait.missing));
    for (const int64_t late : chain_of(answers, wait)) {
      text +=
          detail::concat("; rank ", late, " ", doing_text(answers, late, wait));
    }
    return text;
  }
  return {};
}

} // namespace weft::mesh
