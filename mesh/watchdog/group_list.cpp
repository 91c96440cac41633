#include "mesh/watchdog/group_list.h"

#include <algorithm>

namespace weft::mesh {
namespace {

constexpr size_t kEntriesTold = 16;

} // namespace

void GroupList::add(
    const std::string& key,
    const std::shared_ptr<GroupState>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& g) { return g.second.expired(); });
  groups_.emplace_back(key, group);
}

GroupList::Groups GroupList::living() const {
  const std::lock_guard lock(mutex_);
  Groups result;
  for (const auto& [key, weak] : groups_) {
    if (auto group = weak.lock()) {
      result.emplace_back(key, std::move(group));
    }
  }
  return result;
}

std::vector<GroupStatus> GroupList::statuses() const {
  std::vector<GroupStatus> result;
  for (const auto& [key, group] : living()) {
    const auto& members = group->backend->members();
    result.push_back(
        {.key = key,
         .name = members.name,
         .ranks = members.ranks,
         .next_sequence = group->flight_recorder->next_sequence(),
         .entries = group->flight_recorder->newest(kEntriesTold)});
  }
  return result;
}

std::vector<GroupRecord> GroupList::records() const {
  std::vector<GroupRecord> result;
  for (const auto& [key, group] : living()) {
    const auto& members = group->backend->members();
    result.push_back(
        {.name = members.name,
         .backend = std::string(group->backend->kind()),
         .ranks = members.ranks,
         .timeout = members.timeout,
         .next_sequence = group->flight_recorder->next_sequence(),
         .entries = group->flight_recorder->entries()});
  }
  return result;
}

std::map<std::string, uint64_t> GroupList::positions() const {
  std::map<std::string, uint64_t> result;
  for (const auto& [key, group] : living()) {
    result.emplace(key, group->flight_recorder->next_sequence());
  }
  return result;
}

std::chrono::nanoseconds GroupList::longest_wait() const {
  const int64_t now_ns = flight_recorder_now_ns();
  int64_t longest_ns = 0;
  for (const auto& [key, group] : living()) {
    const int64_t since_ns = group->flight_recorder->waiting_since_ns();
    longest_ns = std::max(longest_ns, since_ns > 0 ? now_ns - since_ns : 0);
  }
  return std::chrono::nanoseconds(longest_ns);
}

bool GroupList::is_sound() const {
  return std::ranges::all_of(living(), [](const auto& entry) {
    return entry.second->failure().reason.empty();
  });
}

void GroupList::fail(const GroupFailure& failure) const {
  for (const auto& [key, group] : living()) {
    group->fail(failure);
  }
}

} // namespace weft::mesh
