#pragma once

#include <chrono>
#include <string>

namespace weft::mesh {

/// How a rank finds out, and says, why a collective does not end. While none is
/// waited for longer than `stall`, nothing is sent.
struct WatchdogOptions {
  bool enabled = true;
  /// A thread that has waited this long asks the other ranks what they do:
  /// ranks that called different things, or wait for each other in a circle,
  /// end at once and not at the timeout.
  std::chrono::milliseconds stall{500};
  /// A thread that has waited this long says on standard error for whom; again
  /// after twice the time, four times, and so on.
  std::chrono::milliseconds warn_after = std::chrono::seconds(15);
  /// Where each rank leaves a flight record (docs/debugging.md) when a
  /// collective has failed: this text and the rank's number. Empty: what
  /// TORCH_FR_DUMP_TEMP_FILE says; without it, nowhere.
  std::string flight_record;
};

} // namespace weft::mesh
