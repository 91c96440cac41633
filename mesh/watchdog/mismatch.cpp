#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "mesh/communicator/format.h"
#include "mesh/error/error.h"
#include "mesh/watchdog/hang_diagnosis.h"

namespace weft::mesh {
namespace {

struct Member {
  int64_t rank;
  const GroupStatus* group;
  const RankReply* reply;
};
using Members = std::vector<Member>;

std::map<std::string, Members> members_by_group(
    const std::vector<RankReply>& replies) {
  std::map<std::string, Members> result;
  for (const auto& reply : replies) {
    for (const auto& group : reply.status.groups) {
      result[group.key].push_back({reply.status.rank, &group, &reply});
    }
  }
  return result;
}

std::string call_verb(const std::vector<int64_t>& ranks) {
  return ranks.size() == 1 ? " calls " : " call ";
}

struct SameCall {
  std::vector<int64_t> ranks;
  const FlightRecorderEntry* entry;
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

std::string caller_text(const FlightRecorderEntry& entry) {
  return entry.caller == 0
             ? std::string(" in the thread that made the group")
             : detail::concat(
                   " in calling thread ", entry.caller, " of the group");
}

/// Describes the calls of all sets. The smallest set comes first, because it is
/// the most likely to be wrong.
std::string mismatch_text(
    std::vector<SameCall> sets,
    const GroupStatus& group) {
  std::ranges::stable_sort(
      sets, {}, [](const auto& s) { return s.ranks.size(); });
  // Of two equally large sets, the one with the lowest rank counts as right and
  // comes last.
  if (sets.size() == 2 && sets[0].ranks.size() == sets[1].ranks.size() &&
      sets[0].ranks.front() < sets[1].ranks.front()) {
    std::swap(sets[0], sets[1]);
  }
  const bool same_caller = std::ranges::all_of(sets, [&](const auto& s) {
    return s.entry->caller == sets.front().entry->caller;
  });
  std::string text = detail::concat(
      "Ranks called different collectives in group \"", group.name, "\": ");
  for (size_t i = 0; i < sets.size(); ++i) {
    text += detail::concat(
        i == 0 ? "" : ", ",
        ranks_text(sets[i].ranks),
        call_verb(sets[i].ranks),
        call_text(*sets[i].entry),
        same_caller ? "" : caller_text(*sets[i].entry));
  }
  return text + ". " + (same_caller ? kSameCalls : kOneCaller);
}

/// Returns the sequence numbers of all entries of all members, oldest first.
std::set<uint64_t> sequences_of(const Members& members) {
  std::set<uint64_t> result;
  for (const auto& member : members) {
    for (const auto& entry : member.group->entries) {
      result.insert(entry.sequence);
    }
  }
  return result;
}

size_t position_of(const GroupStatus& group, int64_t rank) {
  return static_cast<size_t>(
      std::ranges::find(group.ranks, rank) - group.ranks.begin());
}

/// Describes an all_to_all in which one rank sends elements that the other does
/// not expect.
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

} // namespace

std::optional<HangDiagnosis> find_mismatch(
    const std::vector<RankReply>& replies) {
  for (const auto& [key, members] : members_by_group(replies)) {
    if (auto text = first_mismatch(members)) {
      return HangDiagnosis{*std::move(text)};
    }
  }
  return std::nullopt;
}

} // namespace weft::mesh
