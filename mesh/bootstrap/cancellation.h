#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/unique_fd.h"

namespace weft::mesh {

/// Ends the waits of a rank in the store and at sockets, from any thread.
/// Copies share the state.
class Cancellation {
 public:
  /// Throws: CommError if the system gives no descriptor.
  Cancellation();

  /// Ends all waits, now and later, with CommError. The first reason counts.
  void cancel(const std::string& reason) const;
  bool is_cancelled() const;
  /// Throws: CommError with the reason after cancel().
  void check() const;
  /// A descriptor that becomes readable at cancel(), for poll().
  int descriptor() const { return state_->event.get(); }

  /// Runs `body`, which blocks and cannot be woken, on another thread and
  /// returns its result. After cancel() the thread is left behind: `body` must
  /// own everything that it uses, and end.
  /// Throws: what `body` throws; CommError after cancel().
  template <class Body>
  auto run(Body body) const {
    check();
    std::packaged_task<std::invoke_result_t<Body>()> task(std::move(body));
    auto result = task.get_future();
    std::thread([state = state_, task = std::move(task)]() mutable {
      task();
      const std::lock_guard lock(state->mutex);
      state->changed.notify_all();
    }).detach();
    const auto is_ready = [&] {
      return result.wait_for(std::chrono::seconds(0)) ==
             std::future_status::ready;
    };
    wait_until(is_ready);
    if (!is_ready()) {
      check();
    }
    return result.get();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::string reason;
    base::UniqueFd event;
  };
  /// Blocks until `is_done` or cancel().
  void wait_until(const std::function<bool()>& is_done) const;

  std::shared_ptr<State> state_;
};

} // namespace weft::mesh
