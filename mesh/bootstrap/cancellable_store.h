#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
} // namespace c10d

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// Wraps `store`. A blocked wait polls `cancel_reason` every 100 ms and throws
/// CommError with the reason once it is not empty.
c10::intrusive_ptr<c10d::Store> make_cancellable_store(
    c10::intrusive_ptr<c10d::Store> store,
    std::function<std::string()> cancel_reason);

/// Waits until the counter `key` reaches `count`, at most for `limit`. Rank 0
/// calls it before it ends, because the store ends with it.
/// Throws: std::exception if the store is gone.
void await_count(
    c10d::Store& store,
    const std::string& key,
    int64_t count,
    std::chrono::milliseconds limit);

} // namespace weft::mesh
