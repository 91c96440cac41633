#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/save/save.h"

namespace weft::test {

/// The run whose third save a fault hits: 2x2 ranks save steps 1 and 2, then 3.
/// Tensors are full of their step's number, so that a mix of two shows.
struct CrashRun {
  std::filesystem::path checkpoints;
  bool is_async = false;
  bool fsync = true;
  /// The size of the largest tensor in KiB.
  int64_t kib = 256;
  /// Deleted before the save after the one that the fault hits: someone makes
  /// room on the disk.
  std::filesystem::path ballast = {};
};

constexpr int kCrashRanks = 4;
constexpr int64_t kCrashStep = 3;
constexpr int64_t kCrashKeep = 2;
/// A save by the one that starts again.
constexpr int64_t kNextRunStep = 9;

/// Returns the report of a rank as JSON: `save` ("saved", "refused" by a
/// SaveError, "cut off" by anything else), `error`, `seconds`, `note`; and
/// `next`, of the save after it. `ready` is called before step 3 is saved and
/// before step 4, and returns when that may begin.
std::string run_crash_rank(
    const CrashRun& run,
    int rank,
    int port,
    const std::function<void()>& ready);

/// Returns what a process finds that starts afterwards, as JSON: `names` of the
/// folder, `steps`, `latest`, `problems`: damage, mixed values, a next save
/// that fails.
std::string check_after_crash(const CrashRun& run);

} // namespace weft::test
