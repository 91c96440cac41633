#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// The memory cgroup (v1 or v2) that a process is charged to.
struct MemoryCgroup {
  std::filesystem::path folder;
  /// The mount point of the hierarchy. No limit is above it.
  std::filesystem::path mount;
  bool is_v2 = false;
};

/// Returns the memory cgroup of a process, from /proc/<pid>/cgroup and
/// /proc/self/mountinfo below `proc`. Empty if the process no longer exists (v1
/// forgets dead processes at once) or has no memory cgroup.
std::optional<MemoryCgroup> memory_cgroup(
    pid_t pid,
    const std::filesystem::path& proc = "/proc");

/// Returns the number of OOM kills in the cgroup.
std::optional<int64_t> oom_kills(const MemoryCgroup& cgroup);

/// Returns the smallest memory limit of the cgroup and its ancestors up to the
/// mount, in bytes. Empty if there is no limit.
std::optional<int64_t> memory_limit(const MemoryCgroup& cgroup);

/// Returns the number of OOM kills on the host, in all cgroups.
std::optional<int64_t> host_oom_kills(
    const std::filesystem::path& proc = "/proc");

/// The kernel log from construction on, if it is readable.
class KernelLog {
 public:
  explicit KernelLog(const std::filesystem::path& path = "/dev/kmsg");
  /// Returns true if the kernel log has an OOM kill of `pid`.
  bool reports_oom_kill(pid_t pid);

 private:
  base::UniqueFd fd_;
  std::string text_;
};

/// Returns true if a line of the kernel log is an OOM kill of `pid`.
bool is_oom_kill(std::string_view line, pid_t pid);

} // namespace weft::launcher
