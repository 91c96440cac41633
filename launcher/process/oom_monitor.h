#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "launcher/process/memory_events.h"
#include "launcher/process/outcome.h"

namespace weft::launcher {

/// Determines whether workers that died of SIGKILL were killed by the kernel's
/// OOM killer. While they run, it records their memory cgroups and the number
/// of OOM kills in each cgroup. It polls on a thread of its own, so a child
/// that the process forks meanwhile must not allocate before it execs.
class OomMonitor {
 public:
  explicit OomMonitor(std::vector<pid_t> pids);
  ~OomMonitor();
  OomMonitor(const OomMonitor&) = delete;
  OomMonitor& operator=(const OomMonitor&) = delete;

  /// For a worker that died of SIGKILL, sets the cause, if it can be
  /// determined, and the memory limit.
  void explain(WorkerExit& exit);

 private:
  struct Charged {
    MemoryCgroup cgroup;
    int64_t kills_before = 0;
    std::optional<int64_t> limit;
  };
  void watch();
  void poll();
  FailureCause sigkill_source(pid_t pid, const Charged* charged);

  const std::vector<pid_t> pids_;
  KernelLog log_;
  const std::optional<int64_t> host_kills_before_;
  std::map<pid_t, Charged> charged_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

} // namespace weft::launcher
