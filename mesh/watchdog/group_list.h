#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mesh/communicator/work.h"
#include "mesh/watchdog/flight_record.h"
#include "mesh/watchdog/rank_status.h"

namespace weft::mesh {

/// The existing groups of one rank and what this rank knows of their
/// collectives. Thread-safe.
class GroupList {
 public:
  /// `key` must be identical on all members and unique among groups.
  void add(const std::string& key, const std::shared_ptr<GroupState>& group);

  /// Returns each group with its newest collectives.
  std::vector<GroupStatus> statuses() const;
  /// Returns each group with all recorded collectives.
  std::vector<GroupRecord> records() const;
  /// Returns the sequence number of each group's next collective, by key.
  std::map<std::string, uint64_t> positions() const;
  /// Returns how long a thread has waited in a collective. 0 if none waits.
  std::chrono::nanoseconds longest_wait() const;
  /// Returns true if no group has failed.
  bool is_sound() const;

  void fail(const GroupFailure& failure) const;

 private:
  using Groups =
      std::vector<std::pair<std::string, std::shared_ptr<GroupState>>>;
  Groups living() const;

  mutable std::mutex mutex_;
  std::vector<std::pair<std::string, std::weak_ptr<GroupState>>> groups_;
};

} // namespace weft::mesh
