#pragma once

#include <string_view>

namespace weft::mesh {

/// Controls additional logging and checks. The level is libtorch's, one per
/// process: kInfo logs the setup, kDetail also every sampled iteration. At
/// kDetail ranks also agree on every NCCL collective before it starts; CPU
/// collectives are checked at every level.
/// Source: torch/csrc/distributed/c10d/debug.h.
enum class DebugLevel { kOff, kInfo, kDetail };

DebugLevel get_debug_level() noexcept;
void set_debug_level(DebugLevel level);

/// Sets the level from TORCH_DISTRIBUTED_DEBUG (OFF, INFO or DETAIL,
/// case-insensitive). The level does not change if the variable is not set.
/// Throws: UsageError if the value is none of these.
void set_debug_level_from_env();

/// Returns "OFF", "INFO" or "DETAIL".
std::string_view to_string(DebugLevel level);

} // namespace weft::mesh
