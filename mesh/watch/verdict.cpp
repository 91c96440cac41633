#include "mesh/watch/verdict.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "mesh/error.h"
#include "mesh/watch/wording.h"

namespace weft::mesh {
namespace {

constexpr const char* kSameCalls =
    "All ranks of a group call the same collectives, in the same order, with "
    "the same names, shapes and dtypes: look for what depends on the rank or "
    "on its data";

/// One member's view of a group, with the member.
struct Member {
  int64_t rank;
  const GroupSight* group;
  const RankAnswer* answer;
};
using Members = std::vector<Member>;

/// The members that answered, of every group, by key.
std::map<std::string, Members> members_by_group(
    const std::vector<RankAnswer>& answers) {
  std::map<std::string, Members> result;
  for (const auto& answer : answers) {
    for (const auto& group : answer.sight.groups) {
      result[group.key].push_back({answer.sight.rank, &group, &answer});
    }
  }
  return result;
}

const LedgerEntry* find_entry(const GroupSight& group, uint64_t sequence) {
  const auto entry = std::ranges::find(
      group.entries, sequence, [](const auto& e) { return e.sequence; });
  return entry == group.entries.end() ? nullptr : &*entry;
}

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

std::string call_verb(const std::vector<int64_t>& ranks) {
  return ranks.size() == 1 ? " calls " : " call ";
}

/// Members that made the same call, the larger sets first.
struct SameCall {
  std::vector<int64_t> ranks;
  const LedgerEntry* entry;
};

std::vector<SameCall> by_call(const Members& members, uint64_t sequence) {
  std::vector<SameCall> sets;
  for (const auto& member : members) {
    const auto* entry = find_entry(*member.group, sequence);
    if (!entry) {
      continue;
    }
    const auto same = std::ranges::find(
        sets, entry->identity, [](const auto& s) { return s.entry->identity; });
    if (same == sets.end()) {
      sets.push_back({{member.rank}, entry});
    } else {
      same->ranks.push_back(member.rank);
    }
  }
  return sets;
}

/// The odd ones first.
std::string mismatch_text(std::vector<SameCall> sets, const GroupSight& group) {
  std::ranges::stable_sort(
      sets, {}, [](const auto& s) { return s.ranks.size(); });
  // Of two equally large sets, that with rank 0 is the rule.
  if (sets.size() == 2 && sets[0].ranks.size() == sets[1].ranks.size() &&
      sets[0].ranks.front() < sets[1].ranks.front()) {
    std::swap(sets[0], sets[1]);
  }
  std::string text = detail::concat(
      "Ranks called different collectives in group \"", group.name, "\": ");
  for (size_t i = 0; i < sets.size(); ++i) {
    text += detail::concat(
        i == 0 ? "" : ", ",
        ranks_text(sets[i].ranks),
        call_verb(sets[i].ranks),
        call_text(*sets[i].entry));
  }
  return text + ". " + kSameCalls;
}

/// What all members' entries have in common, oldest first.
std::set<uint64_t> sequences_of(const Members& members) {
  std::set<uint64_t> result;
  for (const auto& member : members) {
    for (const auto& entry : member.group->entries) {
      result.insert(entry.sequence);
    }
  }
  return result;
}

size_t position_of(const GroupSight& group, int64_t rank) {
  return static_cast<size_t>(
      std::ranges::find(group.ranks, rank) - group.ranks.begin());
}

/// Of an all_to_all, elements that one rank sends and the other does not want.
std::optional<std::string> parts_mismatch(
    const Members& members,
    uint64_t sequence) {
  for (const auto& from : members) {
    const auto* sent = find_entry(*from.group, sequence);
    for (const auto& to : members) {
      const auto* wanted = find_entry(*to.group, sequence);
      const size_t size = from.group->ranks.size();
      if (!sent || !wanted || sent->op != "all_to_all" ||
          sent->parts.size() != 2 * size || wanted->parts.size() != 2 * size) {
        continue;
      }
      const auto count = sent->parts[position_of(*from.group, to.rank)];
      const auto expected =
          wanted->parts[size + position_of(*to.group, from.rank)];
      if (count != expected) {
        return detail::concat(
            "Ranks disagree in group \"",
            from.group->name,
            "\" over ",
            call_text(*sent),
            ": rank ",
            from.rank,
            " sends ",
            count,
            " elements to rank ",
            to.rank,
            ", which expects ",
            expected,
            ". ",
            kSameCalls);
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> first_mismatch(const Members& members) {
  for (const uint64_t sequence : sequences_of(members)) {
    const auto sets = by_call(members, sequence);
    if (sets.size() > 1) {
      return mismatch_text(sets, *members.front().group);
    }
    if (auto text = parts_mismatch(members, sequence)) {
      return text;
    }
  }
  return std::nullopt;
}

/// A call that a rank waits for, and the members that have not called it.
struct Wait {
  const GroupSight* group;
  const LedgerEntry* entry;
  std::vector<int64_t> missing;
};

const GroupSight* sight_of(const RankAnswer& answer, const std::string& key) {
  const auto& groups = answer.sight.groups;
  const auto group =
      std::ranges::find(groups, key, [](const auto& g) { return g.key; });
  return group == groups.end() ? nullptr : &*group;
}

/// What keeps `answer`'s rank waiting, the longest wait first.
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

/// The members that wait for the same call as `wait`.
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

std::optional<Verdict> find_mismatch(const std::vector<RankAnswer>& answers) {
  for (const auto& [key, members] : members_by_group(answers)) {
    if (auto text = first_mismatch(members)) {
      return Verdict{*std::move(text)};
    }
  }
  return std::nullopt;
}

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
