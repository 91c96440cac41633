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

/// `store`, where whoever waits looks every tenth of a second whether there is
/// still something to wait for.
/// `cancel_reason`: why there is not; empty if there is. A wait then throws a
/// CommError that says so.
c10::intrusive_ptr<c10d::Store> make_cancellable_store(
    c10::intrusive_ptr<c10d::Store> store,
    std::function<std::string()> cancel_reason);

/// Waits until the others have added up to `count` under `key`, for `limit` at
/// most: for rank 0, which takes the store with it when it ends.
/// Throws: std::exception if the store is gone.
void await_count(
    c10d::Store& store,
    const std::string& key,
    int64_t count,
    std::chrono::milliseconds limit);

} // namespace weft::mesh
