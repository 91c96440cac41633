#include "mesh/bootstrap/cancellable_store.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

using std::chrono::milliseconds;
using WaitClock = std::chrono::steady_clock;

/// The interval at which a waiting client of the store checks for a
/// cancellation.
constexpr milliseconds kSlice{100};

/// Blocks until the keys exist. Returns early, within kSlice, after a
/// cancellation.
void wait_in_slices(
    c10d::Store& store,
    const std::vector<std::string>& keys,
    milliseconds timeout,
    const Cancellation& cancellation) {
  const auto deadline = WaitClock::now() + timeout;
  while (!cancellation.is_cancelled()) {
    const auto end = std::min(deadline, WaitClock::now() + kSlice);
    try {
      store.wait(
          keys,
          std::max(
              std::chrono::ceil<milliseconds>(end - WaitClock::now()),
              milliseconds(1)));
      return;
    } catch (const std::exception&) {
      if (WaitClock::now() < end) {
        throw; // The store is gone, because the wait failed early.
      }
      if (end == deadline) {
        throw_error<TimeoutError>(detail::concat(
            "wait timeout after ",
            timeout.count(),
            "ms, keys: ",
            c10::Join(", ", keys)));
      }
    }
  }
}

class CancellableStore final : public c10d::PrefixStore {
  /// Waits for the keys and returns the result of `get`. Another thread does
  /// both, because `get` blocks if a key was deleted meanwhile. A cancellation
  /// leaves that thread behind.
  template <class Get>
  auto
  read(const std::vector<std::string>& keys, milliseconds timeout, Get get) {
    auto result = cancellation_.run([keys,
                                     timeout,
                                     get = std::move(get),
                                     store = inner(),
                                     cancellation = cancellation_] {
      wait_in_slices(*store, keys, timeout, cancellation);
      cancellation.check();
      return get(*store);
    });
    cancellation_.check();
    return result;
  }
  /// Returns this store without the cancellation, for a thread that may outlive
  /// this object.
  c10::intrusive_ptr<PrefixStore> inner() {
    return c10::make_intrusive<PrefixStore>(prefix_, store_);
  }

 public:
  CancellableStore(
      c10::intrusive_ptr<c10d::Store> store,
      const std::string& prefix,
      Cancellation cancellation)
      : PrefixStore(prefix, std::move(store)),
        cancellation_(std::move(cancellation)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<CancellableStore>(
        store_->clone(), prefix_, cancellation_);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return read(
        {key}, getTimeout(), [key](Store& store) { return store.get(key); });
  }
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override {
    return read(keys, getTimeout(), [keys](Store& store) {
      return store.multiGet(keys);
    });
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, getTimeout());
  }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout)
      override {
    cancellation_.check();
    if (!check(keys)) {
      read(keys, timeout, [](Store& /*store*/) { return true; });
    }
  }

 private:
  Cancellation cancellation_;
};

} // namespace

c10::intrusive_ptr<c10d::Store> make_cancellable_store(
    c10::intrusive_ptr<c10d::Store> store,
    const std::string& prefix,
    Cancellation cancellation) {
  return c10::make_intrusive<CancellableStore>(
      std::move(store), prefix, std::move(cancellation));
}

void await_count(
    c10d::Store& store,
    const std::string& key,
    int64_t count,
    std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (store.add(key, 0) < count &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

} // namespace weft::mesh
