#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
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
    const auto task =
        std::make_shared<std::packaged_task<std::invoke_result_t<Body>()>>(
            std::move(body));
    auto result = task->get_future();
    const auto is_ready = [&result] {
      return result.wait_for(std::chrono::seconds(0)) ==
             std::future_status::ready;
    };
    run_until(is_ready, [task] { (*task)(); });
    if (!is_ready()) {
      check();
    }
    return result.get();
  }

 private:
  class Thread;
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::string reason;
    base::UniqueFd event;
    /// The thread of the last run(), for the next one.
    std::shared_ptr<Thread> idle;
  };
  /// Runs `body` on another thread; blocks until `is_done` or cancel().
  void run_until(
      const std::function<bool()>& is_done,
      std::function<void()> body) const;

  std::shared_ptr<State> state_;
};

} // namespace weft::mesh
