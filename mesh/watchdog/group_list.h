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

/// The groups of one rank that still exist, and what it knows by itself of
/// their collectives. Thread-safe.
class GroupList {
 public:
  /// `key`: the same on all members, and of no other group.
  void add(const std::string& key, const std::shared_ptr<GroupState>& group);

  /// Each group with its newest collectives.
  std::vector<GroupStatus> statuses() const;
  /// Each with all that its ledger still has.
  std::vector<GroupRecord> records() const;
  /// The number of each group's next collective, by key.
  std::map<std::string, uint64_t> positions() const;
  /// For how long a thread has waited in a collective; 0: none waits.
  std::chrono::nanoseconds longest_wait() const;
  /// Whether none has failed.
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
