#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace weft::checkpoint {

/// A progress callback: `done` of `total` bytes, and the current file or
/// tensor. `done` never decreases. It is called often, so it should return
/// quickly. An empty function disables it.
using Progress =
    std::function<void(int64_t done, int64_t total, std::string_view what)>;

} // namespace weft::checkpoint
