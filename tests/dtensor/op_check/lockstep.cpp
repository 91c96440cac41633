#include "tests/dtensor/op_check/lockstep.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/dtensor/op_check/arguments.h"

namespace weft::dtensor::check {
namespace {

// How long the other ranks may go on after one threw, and a case may take.
constexpr auto kGrace = std::chrono::milliseconds(1500);
constexpr auto kTimeout = std::chrono::seconds(20);

} // namespace

struct LockstepRanks::State {
  std::vector<int64_t> shape;
  size_t n = 0;
  std::vector<std::thread> threads;
  std::vector<std::optional<mesh::World>> worlds;

  std::mutex mutex;
  std::condition_variable changed;
  uint64_t round = 0;
  bool stop = false;
  c10::intrusive_ptr<c10d::Store> store;
  const Body* body = nullptr;
  std::vector<std::string> errors;
  size_t done = 0;
  bool failed = false;

  // One rank's thread.
  void serve(size_t rank) {
    at::set_num_threads(1);
    ignore_warnings();
    std::optional<mesh::DeviceMesh> mesh;
    c10::intrusive_ptr<c10d::Store> used;
    for (uint64_t seen = 0;; ++seen) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stop || round > seen; });
      if (stop) {
        return;
      }
      const auto wanted = store;
      const Body& run = *body;
      lock.unlock();
      std::string error;
      try {
        if (used != wanted) {
          mesh.reset();
          mesh = connect(rank, wanted);
          used = wanted;
        }
        run(*mesh);
      } catch (const std::exception& thrown) {
        error = message_of(thrown);
      }
      lock.lock();
      errors[rank] = error;
      failed |= !error.empty();
      ++done;
      changed.notify_all();
    }
  }

  mesh::DeviceMesh connect(
      size_t rank,
      const c10::intrusive_ptr<c10d::Store>& meeting) {
    mesh::WorldOptions options;
    options.timeout = kTimeout;
    auto world = mesh::World::from_store(
        meeting, static_cast<int64_t>(rank), static_cast<int64_t>(n), options);
    {
      const std::lock_guard lock(mutex);
      worlds[rank] = world;
    }
    std::vector<std::string> names{"dp", "tp"};
    names.resize(shape.size());
    return mesh::DeviceMesh::create(world, shape, names);
  }

  void renew_store() {
    auto fresh = c10::make_intrusive<c10d::HashStore>();
    fresh->setTimeout(kTimeout);
    store = std::move(fresh);
  }

  // Waits for all ranks; true if collectives had to be ended.
  bool wait(std::unique_lock<std::mutex>& lock) {
    const auto all = [&] { return done == n; };
    const auto start = std::chrono::steady_clock::now();
    bool aborted = false;
    while (!all()) {
      const bool late = std::chrono::steady_clock::now() - start > kTimeout;
      if (failed || late) {
        if (changed.wait_for(lock, kGrace, all)) {
          break;
        }
        aborted = true;
        const auto running = worlds;
        lock.unlock();
        for (const auto& world : running) {
          if (world) {
            world->abort();
          }
        }
        lock.lock();
      } else {
        changed.wait_for(lock, kGrace, [&] { return all() || failed; });
      }
    }
    return aborted;
  }
};

LockstepRanks::LockstepRanks(std::vector<int64_t> mesh_shape)
    : state_(std::make_unique<State>()) {
  state_->shape = std::move(mesh_shape);
  state_->n = 1;
  for (const int64_t size : state_->shape) {
    state_->n *= static_cast<size_t>(size);
  }
  state_->worlds.resize(state_->n);
  state_->renew_store();
  for (size_t rank = 0; rank < state_->n; ++rank) {
    state_->threads.emplace_back([this, rank] { state_->serve(rank); });
  }
}

LockstepRanks::~LockstepRanks() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->changed.notify_all();
  }
  for (auto& thread : state_->threads) {
    thread.join();
  }
}

std::vector<std::string> LockstepRanks::run(const Body& body) {
  std::unique_lock lock(state_->mutex);
  state_->body = &body;
  state_->errors.assign(state_->n, "");
  state_->done = 0;
  state_->failed = false;
  ++state_->round;
  state_->changed.notify_all();
  const bool aborted = state_->wait(lock);
  // Ranks that differ have run different collectives.
  bool differ = false;
  for (const auto& error : state_->errors) {
    differ |= error.empty() != state_->errors[0].empty();
  }
  if (aborted || differ) {
    state_->renew_store();
  }
  return state_->errors;
}

} // namespace weft::dtensor::check
