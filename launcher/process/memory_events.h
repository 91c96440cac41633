#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// The memory cgroup that a process is charged to, of version 1 or 2.
struct MemoryCgroup {
  std::filesystem::path folder;
  /// Where the hierarchy is mounted: no limit lies above.
  std::filesystem::path mount;
  bool is_v2 = false;
};

/// Reads /proc/<pid>/cgroup and /proc/self/mountinfo below `proc`. None if
/// there is no such process any more (version 1 forgets the dead ones' at
/// once), or no memory cgroup.
std::optional<MemoryCgroup> memory_cgroup(
    pid_t pid,
    const std::filesystem::path& proc = "/proc");

/// How many of its processes the kernel has killed for memory.
std::optional<int64_t> oom_kills(const MemoryCgroup& cgroup);

/// The smallest limit from it up to its mount; none if nothing limits it.
/// Units: bytes.
std::optional<int64_t> memory_limit(const MemoryCgroup& cgroup);

/// The same count of the whole host, whatever the cgroups.
std::optional<int64_t> host_oom_kills(
    const std::filesystem::path& proc = "/proc");

/// The kernel's log from now on, where it may be read.
class KernelLog {
 public:
  explicit KernelLog(const std::filesystem::path& path = "/dev/kmsg");
  /// Whether it has said by now that it killed `pid` for memory.
  bool reports_oom_kill(pid_t pid);

 private:
  base::UniqueFd fd_;
  std::string text_;
};

/// Whether a line of the kernel's log says that.
bool is_oom_kill(std::string_view line, pid_t pid);

} // namespace weft::launcher
