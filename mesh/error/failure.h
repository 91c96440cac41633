#pragma once

#include <chrono>
#include <exception>
#include <string>

namespace weft::mesh {

/// Describes a communication error in a sentence that tells the user what to
/// do. `timeout` is the timeout of the operation.
std::string failure_reason(
    const std::exception& error,
    std::chrono::milliseconds timeout);

/// Formats a duration: "300 s", "1.5 s".
std::string format_seconds(std::chrono::milliseconds duration);

/// The reason why a group can no longer be used. An empty reason means that it
/// can.
struct GroupFailure {
  std::string reason;
  /// True if the ranks called different collectives: a DisagreementError.
  bool is_disagreement = false;
  bool is_timeout = false;
};

} // namespace weft::mesh
