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

constexpr milliseconds kStopGlance{100};

class CancellableStore final : public c10d::PrefixStore {
 public:
  CancellableStore(
      c10::intrusive_ptr<c10d::Store> store,
      std::function<std::string()> cancel_reason)
      : PrefixStore("stoppable", std::move(store)),
        cancel_reason_(std::move(cancel_reason)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<CancellableStore>(
        store_->clone(), cancel_reason_);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    wait({key});
    return PrefixStore::get(key);
  }
  std::vector<std::vector<uint8_t>> multiGet(
      const std::vector<std::string>& keys) override {
    wait(keys);
    return PrefixStore::multiGet(keys);
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, getTimeout());
  }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout)
      override {
    const auto deadline = WaitClock::now() + timeout;
    while (true) {
      if (const auto why = cancel_reason_(); !why.empty()) {
        throw_error<CommError>(why);
      }
      const auto end = std::min(deadline, WaitClock::now() + kStopGlance);
      try {
        PrefixStore::wait(
            keys,
            std::max(
                std::chrono::ceil<milliseconds>(end - WaitClock::now()),
                milliseconds(1)));
        return;
      } catch (const std::exception&) {
        if (WaitClock::now() < end) {
          throw; // Before its time: the store is gone.
        }
        if (end == deadline) {
          throw_error<CommError>(detail::concat(
              "wait timeout after ",
              timeout.count(),
              "ms, keys: ",
              c10::Join(", ", keys)));
        }
      }
    }
  }

 private:
  std::function<std::string()> cancel_reason_;
};

} // namespace

c10::intrusive_ptr<c10d::Store> make_cancellable_store(
    c10::intrusive_ptr<c10d::Store> store,
    std::function<std::string()> cancel_reason) {
  return c10::make_intrusive<CancellableStore>(
      std::move(store), std::move(cancel_reason));
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
