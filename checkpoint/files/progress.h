#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace weft::checkpoint {

/// What long work tells whoever waits: `done` of `total` bytes, and the file or
/// tensor that it is at. `done` never falls; called often, so it should return
/// at once. Empty: nobody waits.
using Progress =
    std::function<void(int64_t done, int64_t total, std::string_view what)>;

} // namespace weft::checkpoint
