#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace weft::testkit {

/// The store of ranks that are threads: a HashStore that wakes only those that
/// wait for the key that is set. c10d's wakes all waits at every key, also
/// those of each rank's watchdog; then half of the context switches of a world
/// of four ranks are theirs.
class RankStore final : public c10d::HashStore {
 public:
  using Keys = std::vector<std::string>;
  using Value = std::vector<uint8_t>;

  void set(const std::string& key, const Value& value) override;
  Value compareSet(
      const std::string& key,
      const Value& expected,
      const Value& desired) override;
  int64_t add(const std::string& key, int64_t value) override;
  void append(const std::string& key, const Value& value) override;
  void multiSet(const Keys& keys, const std::vector<Value>& values) override;

  Value get(const std::string& key) override;
  std::vector<Value> multiGet(const Keys& keys) override;
  using HashStore::wait;
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout)
      override;

 private:
  struct Waiter {
    const Keys& keys;
    std::condition_variable changed;
  };
  /// Wakes those that wait for one of the keys and have all that they wait for.
  void wake(const Keys& keys);

  std::vector<Waiter*> waiters_; // m_
};

} // namespace weft::testkit
