#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lighthouse/wire.h"

namespace weft::lighthouse {

/// The keys through which the groups of an epoch meet, with the semantics of
/// c10d::Store. Its caller carries the messages.
class KeyValueStore {
 public:
  using Client = uint64_t;
  struct Delivery {
    Client client;
    StoreAnswer answer;
  };

  /// Returns the answers that a request brings: its own, if it need not wait,
  /// and those of requests that have waited for its key.
  std::vector<Delivery> handle(Client client, const StoreRequest& request);
  /// Forgets the waiting requests of a client that has gone.
  void drop(Client client);
  /// Deletes the keys that begin with `prefix`, and forgets the requests that
  /// wait for such keys.
  void erase(std::string_view prefix);
  size_t size() const { return values_.size(); }
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    Client client;
    StoreRequest request;
  };

  bool has_all(const std::vector<std::string>& keys) const;
  StoreAnswer answer(const StoreRequest& request);
  std::string compare_set(const StoreRequest& request);

  std::map<std::string, std::string, std::less<>> values_;
  std::vector<Waiting> waiting_;
};

} // namespace weft::lighthouse
