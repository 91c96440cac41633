#include "mesh/bootstrap/cancellation.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "mesh/error/error.h"
#include "mesh/error/resource_limits.h"

namespace weft::mesh {

/// A detached thread that runs functions in order. After this object is
/// destroyed, it ends when the functions that it was given have returned.
class Cancellation::Thread {
 public:
  Thread() {
    std::thread([queue = queue_] { queue->run(); }).detach();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { queue_->put(nullptr); }

  void run(std::function<void()> body) { queue_->put(std::move(body)); }

 private:
  /// The functions to run. The thread shares the queue, because it may outlive
  /// the Thread object.
  class Queue {
   public:
    void put(std::function<void()> body) {
      {
        const std::lock_guard lock(mutex_);
        bodies_.push_back(std::move(body));
      }
      changed_.notify_one();
    }
    void run() {
      while (const auto body = take()) {
        body();
      }
    }

   private:
    std::function<void()> take() {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !bodies_.empty(); });
      auto body = std::move(bodies_.front());
      bodies_.pop_front();
      return body;
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> bodies_;
  };

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

Cancellation::Cancellation() : state_(std::make_shared<State>()) {
  state_->event = base::UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state_->event) {
    const int error = errno;
    throw_error<CommError>(detail::concat(
        "[world] eventfd: ", std::strerror(error), limit_behind(error)));
  }
}

void Cancellation::cancel(const std::string& reason) const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->reason.empty()) {
    return;
  }
  state_->reason = reason;
  state_->changed.notify_all();
  const uint64_t once = 1;
  [[maybe_unused]] const auto written =
      ::write(state_->event.get(), &once, sizeof(once));
}

bool Cancellation::is_cancelled() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->reason.empty();
}

void Cancellation::check() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->reason.empty()) {
    throw_error<CommError>(state_->reason);
  }
}

void Cancellation::run_until(
    const std::function<bool()>& is_done,
    std::function<void()> body) const {
  check();
  std::unique_lock lock(state_->mutex);
  auto thread = std::exchange(state_->idle, nullptr);
  if (!thread) {
    thread = std::make_shared<Thread>();
  }
  thread->run([state = state_, body = std::move(body)] {
    body();
    const std::lock_guard guard(state->mutex);
    state->changed.notify_all();
  });
  state_->changed.wait(
      lock, [&] { return is_done() || !state_->reason.empty(); });
  if (is_done() && !state_->idle) {
    state_->idle = std::move(thread);
  }
}

} // namespace weft::mesh
