#include "tests/support/run_ranks.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace weft::test {
namespace {

std::string message_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error ? c10_error->what_without_backtrace() : error.what();
}

/// One run of all ranks.
class Run {
 public:
  Run(int n, const mesh::WorldOptions& options) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    store->setTimeout(options.timeout);
    for (int rank = 0; rank < n; ++rank) {
      ranks_.push_back(
          {rank, n, mesh::World::from_store(store, rank, n, options)});
    }
  }

  void run(int rank, const std::function<void(RankContext&)>& body) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    at::set_num_threads(1);
    try {
      body(ranks_[rank]);
    } catch (const std::exception& error) {
      fail(rank, message_of(error));
    }
    if (::testing::Test::HasFatalFailure()) {
      abort();
    }
    wait_for_all();
  }

 private:
  // Only the first: the others fail because this rank is gone.
  void fail(int rank, const std::string& message) {
    {
      const std::lock_guard lock(mutex_);
      if (failed_) {
        return;
      }
      failed_ = true;
    }
    ADD_FAILURE() << "rank " << rank << " threw: " << message;
    abort();
  }

  void abort() {
    for (const RankContext& rank : ranks_) {
      rank.world.abort();
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
  bool failed_ = false;
};

} // namespace

mesh::DeviceMesh RankContext::mesh(
    std::vector<int64_t> shape,
    std::vector<std::string> names) const {
  return mesh::DeviceMesh::create(world, std::move(shape), std::move(names));
}

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
  Run run(n, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&run, &body, rank] { run.run(rank, body); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

} // namespace weft::test
