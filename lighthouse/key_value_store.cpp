#include "lighthouse/key_value_store.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace weft::lighthouse {
namespace {

using Op = StoreRequest::Op;

int64_t number_of(const std::string& text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

bool waits(Op op) {
  return op == Op::kGet || op == Op::kWait;
}

} // namespace

std::vector<KeyValueStore::Delivery> KeyValueStore::handle(
    Client client,
    const StoreRequest& request) {
  if (waits(request.op) && !has_all(request.keys)) {
    waiting_.push_back({client, request});
    return {};
  }
  if (request.op == Op::kCancel) {
    std::erase_if(waiting_, [&](const Waiting& waiting) {
      return waiting.client == client &&
             waiting.request.id == static_cast<uint64_t>(request.amount);
    });
  }
  std::vector<Delivery> deliveries{{client, answer(request)}};
  if (request.op == Op::kSet || request.op == Op::kAdd ||
      request.op == Op::kCompareSet) {
    std::erase_if(waiting_, [&](const Waiting& waiting) {
      if (!has_all(waiting.request.keys)) {
        return false;
      }
      deliveries.push_back({waiting.client, answer(waiting.request)});
      return true;
    });
  }
  return deliveries;
}

void KeyValueStore::drop(Client client) {
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    return waiting.client == client;
  });
}

void KeyValueStore::erase(std::string_view prefix) {
  auto key = values_.lower_bound(prefix);
  while (key != values_.end() && key->first.starts_with(prefix)) {
    key = values_.erase(key);
  }
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    return std::ranges::any_of(
        waiting.request.keys,
        [&](const std::string& name) { return name.starts_with(prefix); });
  });
}

bool KeyValueStore::has_all(const std::vector<std::string>& keys) const {
  return std::ranges::all_of(
      keys, [&](const std::string& key) { return values_.contains(key); });
}

StoreAnswer KeyValueStore::answer(const StoreRequest& request) {
  StoreAnswer answer{.id = request.id};
  const auto& key = request.keys.empty() ? std::string() : request.keys.front();
  switch (request.op) {
    case Op::kSet:
      values_[key] = request.value;
      break;
    case Op::kGet:
      for (const auto& name : request.keys) {
        answer.values.push_back(values_.find(name)->second);
      }
      break;
    case Op::kAdd:
      answer.number = number_of(values_[key]) + request.amount;
      values_[key] = std::to_string(answer.number);
      break;
    case Op::kCompareSet:
      answer.values.push_back(compare_set(request));
      break;
    case Op::kDelete:
      answer.number = static_cast<int64_t>(values_.erase(key));
      break;
    case Op::kCheck:
      answer.number = has_all(request.keys) ? 1 : 0;
      break;
    case Op::kWait:
    case Op::kCancel:
      break;
    case Op::kCount:
      answer.number = static_cast<int64_t>(values_.size());
      break;
    case Op::kList:
      for (const auto& [name, value] : values_) {
        answer.values.push_back(name);
      }
      break;
  }
  return answer;
}

/// Sets the value if the present one is the expected one. Returns the value
/// that is valid afterwards; for a missing key the expected one, as c10d does.
std::string KeyValueStore::compare_set(const StoreRequest& request) {
  const auto& key = request.keys.front();
  const auto found = values_.find(key);
  if (found == values_.end()) {
    if (!request.expected.empty()) {
      return request.expected;
    }
    values_[key] = request.value;
    return request.value;
  }
  if (found->second == request.expected) {
    found->second = request.value;
  }
  return found->second;
}

} // namespace weft::lighthouse
