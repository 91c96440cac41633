#pragma once

#include <chrono>
#include <exception>
#include <string>

namespace weft::mesh {

/// What went wrong on the wire, in a sentence a user can act on.
/// `timeout` is how long it was tried.
std::string failure_reason(
    const std::exception& error,
    std::chrono::milliseconds timeout);

/// "300 s", "1.5 s".
std::string format_seconds(std::chrono::milliseconds duration);

/// Why a group can no longer be used; without a reason, it can.
struct GroupFailure {
  std::string reason;
  /// The ranks called different things: a DisagreementError.
  bool is_disagreement = false;
  bool is_timeout = false;
};

} // namespace weft::mesh
