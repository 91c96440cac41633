#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::recipes::bench {

/// The arguments of bench/peer/pytorch_dcp.py, and what it leaves to defaults.
struct CheckpointOptions {
  /// Is made, used and deleted.
  std::string folder;
  int64_t mb = 768;
  int64_t threads = 1;
};

/// Saves a state of `mb` MiB (parameters and two moments, sharded over half of
/// the ranks and replicated over the rest), loads it as it lies, and loads it
/// cut along both mesh dims. Each is done twice; the better time counts, as in
/// the peer. On rank 0 returns one line of JSON with the peer's keys and more;
/// nothing on the others.
/// Collective: an even number of ranks, or 1.
std::optional<std::string> run_checkpoint(const CheckpointOptions& options);

} // namespace weft::recipes::bench
