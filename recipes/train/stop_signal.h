#pragma once

#include <c10/util/Exception.h>

#include <signal.h>

namespace weft::recipes {

/// A run was told to end and has ended after a step: the same command goes on.
class PreemptedError : public c10::Error {
  using c10::Error::Error;
};

/// While one lives, SIGTERM does not end the process but is remembered. One at
/// a time in a process.
class StopSignal {
 public:
  StopSignal();
  /// SIGTERM does again what it did before.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Whether SIGTERM has come, once or more often.
  static bool has_come();

 private:
  struct sigaction before_ {};
};

} // namespace weft::recipes
