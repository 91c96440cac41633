#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// Waits until the others have added up to `count` under `key`, for `limit` at
/// most: for rank 0, which takes the store with it when it ends.
/// Throws: std::exception if the store is gone.
void await_count(
    c10d::Store& store,
    const std::string& key,
    int64_t count,
    std::chrono::milliseconds limit);

} // namespace weft::mesh
