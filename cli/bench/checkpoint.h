#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weft::recipes::bench {

/// The arguments of bench/peer/checkpoint.py, and what it leaves to defaults.
struct CheckpointOptions {
  /// Is made, used and deleted.
  std::string folder;
  int64_t mb = 768;
  int64_t threads = 1;
};

/// Saves a state of `mb` MiB (parameters and two moments, sharded over half of
/// the ranks and replicated over the rest), loads it as it lies, loads it cut
/// along both mesh dims, and saves it in the background. On rank 0 returns one
/// line of JSON with the peer's keys and more; nothing on the others:
///   mb: of the state.
///   save_s, save_nosync_s; load_same_s, load_same_all_or_nothing_s,
///     load_reshard_s: from a barrier to the next, the best of two.
///   async_block_first_s, async_block_s: the same of save_async(), which copies
///     into new memory once and then into what it has.
///   async_blocked_s: what save_async() itself says, of the slowest rank.
///   async_total_s: from the call to the commit, the ranks computing meanwhile.
///   step_s, async_step_s: a product of matrices, with nothing else to do and
///     while a save is in flight.
///   save_mb, load_mb, load_reshard_mb: written and read by all ranks together.
///   save_peak_mb, load_peak_mb, load_all_or_nothing_peak_mb,
///     load_reshard_peak_mb, async_peak_mb: resident memory beyond the state's,
///     of the rank with most; async_staging_mb: of that, kept.
///   raw_write_s, memcpy_s: the disk and memory on one rank, without Weft: the
///     whole state.
/// Units: MiB, seconds. Collective: an even number of ranks, or 1.
std::optional<std::string> run_checkpoint(const CheckpointOptions& options);

} // namespace weft::recipes::bench
