#include "launcher/process/oom_monitor.h"

#include <chrono>

#include <signal.h>

namespace weft::launcher {
namespace {

/// The first poll is early, because a worker may move to another cgroup when it
/// starts.
constexpr std::chrono::milliseconds kFirstPoll{20};
constexpr std::chrono::milliseconds kLongestPause{1000};

} // namespace

OomMonitor::OomMonitor(std::vector<pid_t> pids)
    : pids_(std::move(pids)), host_kills_before_(host_oom_kills()) {
  poll();
  thread_ = std::thread([this] { watch(); });
}

OomMonitor::~OomMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

void OomMonitor::watch() {
  std::unique_lock lock(mutex_);
  for (auto pause = kFirstPoll; !stopping_;
       pause = std::min(2 * pause, kLongestPause)) {
    if (!stop_.wait_for(lock, pause, [&] { return stopping_; })) {
      poll();
    }
  }
}

void OomMonitor::poll() {
  for (const pid_t pid : pids_) {
    const auto cgroup = memory_cgroup(pid);
    const auto known = charged_.find(pid);
    // cgroup v1 shows a dead process in the root, so the last other cgroup is
    // kept.
    if (!cgroup || (!cgroup->is_v2 && cgroup->folder == cgroup->mount / "") ||
        (known != charged_.end() &&
         known->second.cgroup.folder == cgroup->folder)) {
      continue;
    }
    charged_[pid] = {
        .cgroup = *cgroup,
        .kills_before = oom_kills(*cgroup).value_or(0),
        .limit = memory_limit(*cgroup)};
  }
}

FailureCause OomMonitor::sigkill_source(pid_t pid, const Charged* charged) {
  const auto kills = charged ? oom_kills(charged->cgroup) : std::nullopt;
  if ((kills && *kills > charged->kills_before) || log_.reports_oom_kill(pid)) {
    return FailureCause::kOutOfMemory;
  }
  const auto on_host = host_oom_kills();
  const bool none_on_host =
      on_host && host_kills_before_ && *on_host == *host_kills_before_;
  return none_on_host || kills ? FailureCause::kSigkillSourceUnknown
                               : FailureCause::kNone;
}

void OomMonitor::explain(WorkerExit& exit) {
  if (exit.signal != SIGKILL || exit.stopped) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const auto found = charged_.find(exit.pid);
  const Charged* charged = found == charged_.end() ? nullptr : &found->second;
  exit.failure_cause = sigkill_source(exit.pid, charged);
  exit.memory_limit_bytes = charged != nullptr ? charged->limit.value_or(0) : 0;
}

} // namespace weft::launcher
