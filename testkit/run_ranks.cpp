#include "testkit/run_ranks.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <ATen/Parallel.h>

#include "mesh/error/failure.h"
#include "testkit/rank_store.h"

namespace weft {

mesh::DeviceMesh RankContext::mesh(
    std::vector<int64_t> shape,
    std::vector<std::string> names) const {
  return mesh::DeviceMesh::create(world, std::move(shape), std::move(names));
}

namespace testkit {
namespace {

mesh::WorldOptions options_with(
    std::chrono::milliseconds timeout,
    const std::string& backend) {
  mesh::WorldOptions options;
  options.timeout = timeout;
  options.backend = backend;
  return options;
}

} // namespace

struct Ranks::State {
  explicit State(int n, const mesh::WorldOptions& options) {
    auto store = c10::make_intrusive<RankStore>();
    store->setTimeout(options.timeout);
    for (int rank = 0; rank < n; ++rank) {
      ranks.push_back(
          {rank, n, mesh::World::from_store(store, rank, n, options)});
    }
    for (RankContext& rank : ranks) {
      threads.emplace_back([this, &rank] { serve(rank); });
    }
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      is_ending = true;
    }
    begun.notify_all();
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  void serve(RankContext& rank) {
    at::set_num_threads(1);
    std::unique_lock lock(mutex);
    for (int64_t next = 1;; ++next) {
      begun.wait(lock, [&] { return is_ending || bodies == next; });
      if (is_ending) {
        return;
      }
      lock.unlock();
      try {
        (*body)(rank);
      } catch (...) {
        fail(rank, std::current_exception());
      }
      lock.lock();
      if (--running == 0) {
        ended.notify_one();
      }
    }
  }

  // Records the first failure and aborts all ranks. Later failures are ignored,
  // because they follow from the abort.
  void fail(const RankContext& rank, std::exception_ptr cause) {
    {
      const std::lock_guard lock(mutex);
      if (error) {
        return;
      }
      error.emplace(rank.rank, mesh::message_of(cause), std::move(cause));
    }
    for (const RankContext& other : ranks) {
      other.world.abort();
    }
  }

  std::vector<RankContext> ranks;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable begun;
  std::condition_variable ended;
  // The mutex protects the following members.
  const std::function<void(RankContext&)>* body = nullptr;
  int64_t bodies = 0; // The number of bodies that have begun.
  size_t running = 0;
  bool is_ending = false;
  std::optional<RankError> error;
};

Ranks::Ranks(int n, std::chrono::milliseconds timeout)
    : Ranks(n, options_with(timeout, "cpu")) {}

Ranks::Ranks(int n, const mesh::WorldOptions& options)
    : state_(std::make_unique<State>(n, options)) {}

Ranks::~Ranks() = default;

void Ranks::run(const std::function<void(RankContext&)>& body) {
  std::unique_lock lock(state_->mutex);
  if (state_->error) {
    throw std::logic_error(
        "[testkit] an earlier body failed (" +
        std::string(state_->error->what()) +
        "), so that these ranks cannot run another. Start new ones.");
  }
  state_->body = &body;
  state_->running = state_->ranks.size();
  ++state_->bodies;
  state_->begun.notify_all();
  state_->ended.wait(lock, [&] { return state_->running == 0; });
  if (state_->error) {
    throw RankError(*state_->error);
  }
}

void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    std::chrono::milliseconds timeout,
    const std::string& backend) {
  run_ranks(n, body, options_with(timeout, backend));
}

void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    const mesh::WorldOptions& options) {
  Ranks(n, options).run(body);
}

} // namespace testkit
} // namespace weft
