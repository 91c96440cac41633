#include "testkit/rank_store.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace weft::testkit {

void RankStore::set(const std::string& key, const Value& value) {
  HashStore::set(key, value);
  wake({key});
}

RankStore::Value RankStore::compareSet(
    const std::string& key,
    const Value& expected,
    const Value& desired) {
  auto value = HashStore::compareSet(key, expected, desired);
  wake({key});
  return value;
}

int64_t RankStore::add(const std::string& key, int64_t value) {
  const auto sum = HashStore::add(key, value);
  wake({key});
  return sum;
}

void RankStore::append(const std::string& key, const Value& value) {
  HashStore::append(key, value);
  wake({key});
}

void RankStore::multiSet(const Keys& keys, const std::vector<Value>& values) {
  HashStore::multiSet(keys, values);
  wake(keys);
}

RankStore::Value RankStore::get(const std::string& key) {
  wait({key});
  return HashStore::get(key);
}

std::vector<RankStore::Value> RankStore::multiGet(const Keys& keys) {
  wait(keys);
  return HashStore::multiGet(keys);
}

void RankStore::wait(
    const Keys& keys,
    const std::chrono::milliseconds& timeout) {
  std::unique_lock lock(m_);
  const auto has_all = [&] { return checkLocked(lock, keys); };
  if (has_all()) {
    return;
  }
  Waiter waiter{.keys = keys, .changed = {}};
  waiters_.push_back(&waiter);
  bool came = true;
  if (timeout == kNoTimeout) {
    waiter.changed.wait(lock, has_all);
  } else {
    came = waiter.changed.wait_for(lock, timeout, has_all);
  }
  std::erase(waiters_, &waiter);
  if (!came) {
    C10_THROW_ERROR(
        DistStoreError,
        c10::str(
            "Wait timeout after ",
            timeout.count(),
            "ms, keys: ",
            c10::Join(", ", keys)));
  }
}

void RankStore::wake(const Keys& keys) {
  const std::unique_lock lock(m_);
  for (auto* waiter : waiters_) {
    const bool is_waited_for =
        std::ranges::any_of(waiter->keys, [&](const auto& key) {
          return std::ranges::find(keys, key) != keys.end();
        });
    if (is_waited_for && checkLocked(lock, waiter->keys)) {
      waiter->changed.notify_one();
    }
  }
}

} // namespace weft::testkit
