#include "testkit/run_ranks.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "testkit/rank_store.h"

namespace weft {

mesh::DeviceMesh RankContext::mesh(
    std::vector<int64_t> shape,
    std::vector<std::string> names) const {
  return mesh::DeviceMesh::create(world, std::move(shape), std::move(names));
}

namespace testkit {
namespace {

std::string message_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

/// One run of all ranks.
class Run {
 public:
  Run(int n, const mesh::WorldOptions& options) {
    auto store = c10::make_intrusive<RankStore>();
    store->setTimeout(options.timeout);
    for (int rank = 0; rank < n; ++rank) {
      ranks_.push_back(
          {rank, n, mesh::World::from_store(store, rank, n, options)});
    }
  }

  void run(int rank, const std::function<void(RankContext&)>& body) {
    at::set_num_threads(1);
    try {
      body(ranks_[rank]);
    } catch (...) {
      fail(rank, std::current_exception());
    }
    wait_for_all();
  }

  const std::optional<RankError>& error() const { return error_; }

 private:
  // Only the first: the others fail because this rank is gone.
  void fail(int rank, std::exception_ptr cause) {
    {
      const std::lock_guard lock(mutex_);
      if (error_) {
        return;
      }
      error_.emplace(rank, message_of(cause), std::move(cause));
    }
    for (const RankContext& other : ranks_) {
      other.world.abort();
    }
  }

  void wait_for_all() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    all_arrived_.notify_all();
    all_arrived_.wait(lock, [&] { return arrived_ == ranks_.size(); });
  }

  std::vector<RankContext> ranks_;
  std::mutex mutex_;
  std::condition_variable all_arrived_;
  size_t arrived_ = 0;
  std::optional<RankError> error_;
};

} // namespace

void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    std::chrono::milliseconds timeout,
    const std::string& backend) {
  mesh::WorldOptions options;
  options.timeout = timeout;
  options.backend = backend;
  run_ranks(n, body, options);
}

void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    const mesh::WorldOptions& options) {
  std::optional<RankError> error;
  {
    Run run(n, options);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n; ++rank) {
      threads.emplace_back([&run, &body, rank] { run.run(rank, body); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    error = run.error();
  }
  if (error) {
    throw RankError(*error);
  }
}

} // namespace testkit
} // namespace weft
