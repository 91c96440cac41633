#pragma once

namespace weft::base {

/// The exit codes of `weft` and `weftrun`. Below 128 a retry is not useful.
enum class ExitCode : int {
  kSuccess = 0,
  kCheckFailed = 1,
  kUsage = 2,
  kNonFinite = 3,
  kCheckpoint = 4,
  kDisagreement = 5,
  kOutOfMemory = 137,
  kPreempted = 143,
  kPeerLost = 150,
};

} // namespace weft::base
