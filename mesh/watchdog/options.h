#pragma once

#include <chrono>
#include <string>

namespace weft::mesh {

/// Watchdog options. The watchdog sends nothing until a thread has waited
/// longer than `stall`.
struct WatchdogOptions {
  /// False disables the watchdog.
  bool enabled = true;
  /// The wait after which a rank asks the other ranks for their state.
  /// Mismatched collectives and deadlock cycles then fail at once instead of at
  /// the timeout.
  std::chrono::milliseconds stall{500};
  /// The wait after which a rank prints to standard error which ranks it waits
  /// for. It repeats after twice the time, four times, and so on.
  std::chrono::milliseconds warn_after = std::chrono::seconds(15);
  /// The prefix of the flight record (docs/debugging.md) that each rank writes
  /// after a failed collective; the rank is appended. Empty means the value of
  /// TORCH_FR_DUMP_TEMP_FILE, or no record if that is not set.
  std::string flight_record;
};

} // namespace weft::mesh
