#include "mesh/watchdog/waits.h"

#include <algorithm>
#include <map>
#include <utility>

#include "mesh/communicator/format.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

const FlightRecorderEntry* longest_wait(const GroupStatus& group) {
  const FlightRecorderEntry* found = nullptr;
  for (const auto& entry : group.entries) {
    if (entry.wait_ns > 0 && (!found || entry.wait_ns < found->wait_ns)) {
      found = &entry;
    }
  }
  return found;
}

const GroupStatus* sight_of(const RankReply& reply, const std::string& key) {
  const auto& groups = reply.status.groups;
  const auto group =
      std::ranges::find(groups, key, [](const auto& g) { return g.key; });
  return group == groups.end() ? nullptr : &*group;
}

/// Describes what `rank` does, for a rank that waits for it in a group.
std::string doing_text(
    const std::vector<RankReply>& replies,
    int64_t rank,
    const std::string& group_key) {
  const auto& reply = replies[static_cast<size_t>(rank)];
  const auto& status = reply.status;
  if (!reply.has_reply) {
    return "is not responding" + (reply.absence_reason.empty()
                                      ? ""
                                      : " (" + reply.absence_reason + ")");
  }
  std::string text;
  if (!status.activity.empty()) {
    text = "is in " + status.activity;
  }
  if (const auto own = waits_of(replies, reply); !own.empty()) {
    const auto& wait = own.front();
    return text + (text.empty() ? "" : ", and ") + "waits in " +
           call_text(*wait.entry) + " of group \"" + wait.group->name + "\"" +
           (wait.missing.empty() ? "" : " for " + ranks_text(wait.missing));
  }
  const auto* group = sight_of(reply, group_key);
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

/// Returns the ranks that are waited for, those that they wait for, and so on.
std::vector<int64_t> chain_of(
    const std::vector<RankReply>& replies,
    const Wait& wait) {
  auto chain = wait.missing;
  for (size_t i = 0; i < chain.size(); ++i) {
    const auto& next = replies[static_cast<size_t>(chain[i])];
    for (const auto& further : waits_of(replies, next)) {
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
    const std::vector<RankReply>& replies,
    const RankReply& reply) {
  std::vector<Wait> waits;
  for (const auto& group : reply.status.groups) {
    const auto* entry = longest_wait(group);
    if (!entry) {
      continue;
    }
    Wait wait{&group, entry, {}};
    for (const int64_t rank : group.ranks) {
      const auto& other = replies[static_cast<size_t>(rank)];
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
    const std::vector<RankReply>& replies,
    const Wait& wait) {
  std::vector<int64_t> ranks;
  for (const int64_t rank : wait.group->ranks) {
    const auto* group =
        sight_of(replies[static_cast<size_t>(rank)], wait.group->key);
    const auto* entry =
        group ? find_entry(*group, wait.entry->sequence) : nullptr;
    if (entry && entry->wait_ns > 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<int64_t> late_ranks(
    const std::vector<RankReply>& replies,
    int64_t rank) {
  const auto waits = waits_of(replies, replies[static_cast<size_t>(rank)]);
  auto late = waits.empty() ? std::vector<int64_t>() : waits.front().missing;
  std::erase_if(late, [&](int64_t other) {
    return !replies[static_cast<size_t>(other)].has_reply;
  });
  return late;
}

bool wait_in_same_call(
    const std::vector<RankReply>& replies,
    int64_t rank,
    int64_t other) {
  const auto ours = waits_of(replies, replies[static_cast<size_t>(rank)]);
  const auto theirs = waits_of(replies, replies[static_cast<size_t>(other)]);
  return !ours.empty() && !theirs.empty() &&
         ours.front().group->key == theirs.front().group->key &&
         ours.front().entry->sequence == theirs.front().entry->sequence;
}

std::string describe_wait(const std::vector<RankReply>& replies, int64_t rank) {
  const auto& own = replies[static_cast<size_t>(rank)];
  for (const auto& wait : waits_of(replies, own)) {
    if (wait.missing.empty()) {
      continue;
    }
    const auto waiting = waiting_with(replies, wait);
    std::string text = detail::concat(
        ranks_text(waiting),
        waiting.size() == 1 ? " has waited " : " have waited ",
        seconds_text(own.status.now_ns - wait.entry->wait_ns),
        " in ",
        call_text(*wait.entry),
        " of group \"",
        wait.group->name,
        "\" for ",
        ranks_text(wait.missing));
    for (const int64_t late : chain_of(replies, wait)) {
      text += detail::concat(
          "; rank ", late, " ", doing_text(replies, late, wait.group->key));
    }
    return text;
  }
  return {};
}

std::string describe_behind(
    const std::vector<RankReply>& replies,
    int64_t rank) {
  std::map<int64_t, std::string> absent;
  std::map<int64_t, std::string> slow;
  for (const auto& group : replies[static_cast<size_t>(rank)].status.groups) {
    for (const int64_t other : group.ranks) {
      const auto& reply = replies[static_cast<size_t>(other)];
      const auto* theirs = sight_of(reply, group.key);
      if (!reply.has_reply) {
        absent.emplace(other, doing_text(replies, other, group.key));
      } else if (!theirs || theirs->next_sequence < group.next_sequence) {
        slow.emplace(
            other,
            doing_text(replies, other, group.key) + " of group \"" +
                group.name + "\"");
      }
    }
  }
  std::string text;
  for (const auto& [other, doing] : absent.empty() ? slow : absent) {
    text +=
        detail::concat(text.empty() ? "" : "; ", "rank ", other, " ", doing);
  }
  return text;
}

} // namespace weft::mesh
