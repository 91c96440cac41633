#pragma once

#include <string_view>

namespace weft::mesh {

/// How much is said and checked beyond what is always. The level is libtorch's
/// own, one for the process: kInfo logs what was set up, kDetail what happens
/// in each sampled iteration too. At kDetail ranks also agree on each
/// collective over NCCL before it begins; over the host each is checked at
/// every level. Source: torch/csrc/distributed/c10d/debug.h.
enum class DebugLevel { kOff, kInfo, kDetail };

DebugLevel get_debug_level() noexcept;
void set_debug_level(DebugLevel level);

/// Sets the level that TORCH_DISTRIBUTED_DEBUG names: OFF, INFO or DETAIL in
/// any case. Without the variable the level stays as it is.
/// Throws: UsageError naming the variable, its value and the levels.
void set_debug_level_from_env();

/// "OFF", "INFO" or "DETAIL".
std::string_view to_string(DebugLevel level);

} // namespace weft::mesh
