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

/// Finds out whether workers that are killed are killed by the kernel for their
/// memory: remembers, while they live, to which memory cgroups they belong and
/// how many processes each of them has lost so far. Looks at them now and then
/// on a thread of its own; no process may be forked meanwhile.
class OomMonitor {
 public:
  explicit OomMonitor(std::vector<pid_t> pids);
  ~OomMonitor();
  OomMonitor(const OomMonitor&) = delete;
  OomMonitor& operator=(const OomMonitor&) = delete;

  /// Fills in, for a worker that SIGKILL has ended, who killed it if that can
  /// be known, and the limit.
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
