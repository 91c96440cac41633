#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "mesh/bootstrap/cancellation.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// Returns a PrefixStore whose waits end at once by `cancellation`. `store`
/// itself may stay busy for 100 ms more.
c10::intrusive_ptr<c10d::Store> make_cancellable_store(
    c10::intrusive_ptr<c10d::Store> store,
    const std::string& prefix,
    Cancellation cancellation);

/// The store of a group that connects, and the way to end its waits.
struct GroupRendezvous {
  /// Has keys for this group alone; its waits end by `cancellation`.
  c10::intrusive_ptr<c10d::Store> store;
  Cancellation cancellation;
};

/// Waits until the counter `key` reaches `count`, at most for `limit`. Rank 0
/// calls it before it ends, because the store ends with it.
/// Throws: std::exception if the store is gone.
void await_count(
    c10d::Store& store,
    const std::string& key,
    int64_t count,
    std::chrono::milliseconds limit);

} // namespace weft::mesh
