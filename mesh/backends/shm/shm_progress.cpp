#include "mesh/backends/shm/shm_progress.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <utility>

#include <ATen/Parallel.h>

#include "mesh/error/error.h"
#include "mesh/error/failure.h"

namespace weft::mesh {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// The time for which a waiting thread polls before it sleeps. If every thread
// has a core of its own, it is about the time that a wake-up takes. Otherwise
// it is short, because the peer may need this core.
constexpr microseconds kSpin{100};
constexpr microseconds kShortSpin{2};
// The longest sleep, and the interval of checks that the peers are alive.
constexpr milliseconds kSleep{100};
// The polling interval of the progress thread. It is kEager if there are at
// least two cores per rank, otherwise kSeldom.
constexpr microseconds kEager{100};
constexpr milliseconds kSeldom{5};
// The number of polls without work after which the progress thread waits for a
// notification.
constexpr int kIdlePolls = 100;

std::atomic<int64_t> extra_threads = 0;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace

ExtraThread::ExtraThread() {
  ++extra_threads;
}

ExtraThread::~ExtraThread() {
  --extra_threads;
}

ShmProgress::ShmProgress(int64_t local_ranks, int64_t cores)
    : local_ranks_(local_ranks), cores_(cores) {}

ShmProgress::~ShmProgress() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    progress_needed_.notify_all();
  }
  if (progress_thread_.joinable()) {
    progress_thread_.join();
  }
}

std::shared_ptr<ShmOperation> ShmProgress::start(
    ShmGroup& group,
    std::unique_ptr<ShmCall> call) {
  const std::lock_guard lock(mutex_);
  if (group.is_idle()) {
    active_.push_back(&group);
    group.segment().own().asleep.store(is_asleep_ ? 1 : 0);
  }
  auto operation = group.push(std::move(call));
  progress();
  if (!operation->done) {
    wake_progress_thread();
  }
  return operation;
}

void ShmProgress::wait(ShmOperation& operation) {
  Lock lock(mutex_);
  while (!operation.done) {
    if (is_polled_) {
      ++followers_;
      followed_.wait(lock);
      --followers_;
    } else {
      is_polled_ = true;
      poll(lock, operation);
      is_polled_ = false;
      followed_.notify_all();
    }
  }
  if (operation.failure == kOutOfMemory) {
    throw std::bad_alloc();
  }
  if (!operation.failure.empty()) {
    throw_error<CommError>(operation.failure);
  }
}

bool ShmProgress::is_done(const ShmOperation& operation) {
  if (!operation.done) {
    const std::lock_guard lock(mutex_);
    progress();
  }
  return operation.done;
}

bool ShmProgress::when_done(
    ShmOperation& operation,
    std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  if (operation.done) {
    return false;
  }
  operation.callback = std::move(callback);
  return true;
}

void ShmProgress::abort(ShmGroup& group, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail(group, reason);
  ShmDoorbell::ring(doorbell_.descriptor());
}

void ShmProgress::forget(ShmGroup& group) {
  const std::lock_guard lock(mutex_);
  std::erase(active_, &group);
}

bool ShmProgress::progress() {
  bool moved = false;
  for (auto* group : active_) {
    try {
      moved = group->progress() || moved;
    } catch (const std::exception& error) {
      group->fail(is_out_of_memory(error) ? kOutOfMemory : error.what());
      moved = true;
    }
  }
  std::erase_if(active_, [](const ShmGroup* group) {
    if (group->is_idle()) {
      group->segment().own().asleep.store(0);
    }
    return group->is_idle();
  });
  if (moved && followers_ > 0) {
    followed_.notify_all();
  }
  return moved;
}

// Checks the peers of all active groups, not only of the one that this thread
// waits for: no other thread polls.
void ShmProgress::check_peers() {
  next_check_ = Clock::now() + kSleep;
  for (auto* group : std::vector(active_)) {
    const auto peer_failure = group->peer_failure();
    // The peer may have published data just now, or as the last thing before it
    // was lost, so progress() reads it before the group fails.
    if (!peer_failure.empty() && !progress() && !group->is_idle()) {
      fail(*group, peer_failure);
    }
  }
}

void ShmProgress::fail(ShmGroup& group, const std::string& reason) {
  group.fail(reason);
  std::erase(active_, &group);
  followed_.notify_all();
}

void ShmProgress::poll(Lock& lock, ShmOperation& operation) {
  const auto threads = local_ranks_ * at::get_num_threads() + extra_threads;
  const auto spin = threads <= cores_ ? kSpin : kShortSpin;
  auto give_up = Clock::now() + spin;
  while (true) {
    if (progress()) {
      give_up = Clock::now() + spin;
    }
    if (operation.done) {
      return;
    }
    const auto now = Clock::now();
    if (now > next_check_) {
      check_peers();
    } else if (now < give_up) {
      lock.unlock();
      pause();
      lock.lock();
    } else {
      sleep(lock);
      give_up = Clock::now() + spin;
    }
  }
}

void ShmProgress::sleep(Lock& lock) {
  set_asleep(true);
  if (!progress()) {
    // A peer that left before this rank set `asleep` has not rung the doorbell.
    if (!has_left_peer()) {
      lock.unlock();
      doorbell_.wait(kSleep);
      lock.lock();
    }
    if (!progress()) {
      check_peers(); // A peer may have left, or the sleep timed out.
    }
  }
  set_asleep(false);
}

bool ShmProgress::has_left_peer() const {
  return std::ranges::any_of(active_, [](const ShmGroup* group) {
    return group->segment().has_left_rank();
  });
}

void ShmProgress::set_asleep(bool asleep) {
  is_asleep_ = asleep;
  for (const auto* group : active_) {
    group->segment().own().asleep.store(asleep ? 1 : 0);
  }
}

void ShmProgress::wake_progress_thread() {
  if (!progress_thread_.joinable()) {
    progress_thread_ = std::thread([this] { run_progress_thread(); });
  } else if (is_progress_thread_idle_) {
    progress_needed_.notify_all();
  }
}

void ShmProgress::run_progress_thread() {
  const microseconds pause =
      cores_ >= 2 * local_ranks_ ? kEager : microseconds(kSeldom);
  int idle_polls = 0;
  Lock lock(mutex_);
  while (!is_over_) {
    if (idle_polls < kIdlePolls) {
      progress_needed_.wait_for(lock, pause);
    } else {
      is_progress_thread_idle_ = true;
      progress_needed_.wait(lock, [&] { return is_over_ || !active_.empty(); });
      is_progress_thread_idle_ = false;
    }
    idle_polls = active_.empty() ? idle_polls + 1 : 0;
    if (!is_polled_) {
      progress();
      if (Clock::now() > next_check_) {
        check_peers();
      }
    }
  }
}

} // namespace weft::mesh
