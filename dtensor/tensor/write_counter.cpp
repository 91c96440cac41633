#include "dtensor/tensor/write_counter.h"

#include <mutex>
#include <unordered_map>

namespace weft::dtensor {
namespace {

// The counters of a mesh and its slices.
struct WriteCounters {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<WriteCounter>> all;
  /// The value of all.size(), which is read without the lock to skip an empty
  /// map.
  std::atomic<size_t> size{0};
};

struct SharedWriteCounters {
  std::shared_ptr<WriteCounters> counters = std::make_shared<WriteCounters>();
};

const std::shared_ptr<WriteCounters>& counters_of(const DTensorSpec& spec) {
  return spec.mesh().root().extension<SharedWriteCounters>().counters;
}

const c10::StorageImpl* memory_of(const at::Tensor& local) {
  return local.storage().unsafeGetStorageImpl();
}

void forget(WriteCounters& counters, const c10::StorageImpl* memory) {
  const std::lock_guard lock(counters.mutex);
  const auto it = counters.all.find(memory);
  if (it != counters.all.end() && it->second.expired()) {
    counters.all.erase(it);
    counters.size.store(counters.all.size(), std::memory_order_release);
  }
}

} // namespace

std::shared_ptr<const WriteCounter> watch_writes(
    const DTensorSpec& spec,
    const at::Tensor& local) {
  const auto& counters = counters_of(spec);
  const auto* memory = memory_of(local);
  const std::lock_guard lock(counters->mutex);
  auto& entry = counters->all[memory];
  if (auto found = entry.lock()) {
    return found;
  }
  std::shared_ptr<WriteCounter> made(
      new WriteCounter, [counters, memory](const WriteCounter* counter) {
        forget(*counters, memory);
        delete counter;
      });
  entry = made;
  counters->size.store(counters->all.size(), std::memory_order_release);
  return made;
}

bool are_writes_watched(const DTensorSpec& spec) {
  return counters_of(spec)->size.load(std::memory_order_acquire) != 0;
}

void count_write(const DTensorSpec& spec, const at::Tensor& local) {
  if (!are_writes_watched(spec)) {
    return;
  }
  auto& counters = *counters_of(spec);
  // Declared before the lock, so that it is released after the lock: if this is
  // the last reference, the deleter locks the same mutex.
  std::shared_ptr<WriteCounter> counter;
  const std::lock_guard lock(counters.mutex);
  const auto it = counters.all.find(memory_of(local));
  if (it == counters.all.end()) {
    return;
  }
  counter = it->second.lock();
  if (counter) {
    counter->add();
  }
}

} // namespace weft::dtensor
