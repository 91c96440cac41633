#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace weft::base {

/// What a process may compute with. Needs no libtorch: weftrun counts with it.
struct CoreShare {
  /// The cores that it may run on.
  std::set<int> cpus;
  /// Cores' worth of processor time that its control group may use; 0: as much
  /// as there is.
  double quota = 0;
  /// That group: processes of one share the quota.
  std::string quota_group;

  /// For other ranks.
  std::string to_text() const;
  /// What is no such text gives nothing.
  static CoreShare from_text(const std::string& text);
};

/// This process's. `root` stands before the paths of /proc and /sys, for tests.
CoreShare current_core_share(const std::filesystem::path& root = "/");

/// How many cores processes of one host may keep busy together; at least 1.
int64_t count_cores(const std::vector<CoreShare>& shares);

/// How many this one may: those of its affinity, but no more than its control
/// groups' quotas of processor time (cgroup v1 and v2) allow; at least 1.
int64_t usable_cores(const std::filesystem::path& root = "/");

} // namespace weft::base
