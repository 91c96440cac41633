#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace weft::base {

/// The processor time available to a process. Does not use libtorch, because
/// weftrun needs it.
struct CoreShare {
  /// The cores of its affinity mask.
  std::set<int> cpus;
  /// The CPU quota of its control group in cores. 0 means no quota.
  double quota = 0;
  /// The control group with that quota, which its processes share.
  std::string quota_group;

  /// Serializes it for other ranks.
  std::string to_text() const;
  /// Parses the result of to_text(). Malformed text gives an empty CoreShare.
  static CoreShare from_text(const std::string& text);
};

/// Returns the share of this process. `root` is a prefix of /proc and /sys, for
/// tests.
CoreShare current_core_share(const std::filesystem::path& root = "/");

/// Returns the number of cores that processes of one host can use together, at
/// least 1.
int64_t count_cores(const std::vector<CoreShare>& shares);

/// Returns the number of cores that this process can use: those of its affinity
/// mask, limited by the CPU quotas of its control groups (cgroup v1 and v2), at
/// least 1.
int64_t usable_cores(const std::filesystem::path& root = "/");

} // namespace weft::base
