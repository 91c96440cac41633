#pragma once

#include <chrono>
#include <exception>
#include <string>

namespace weft::mesh {

/// The text of `error`. That of a c10::Error comes without libtorch's stack.
std::string message_of(const std::exception& error);

/// The text of an error that was kept, which may be of any type.
std::string message_of(const std::exception_ptr& error);

/// The reason why a group can no longer be used. An empty reason means that it
/// can.
struct GroupFailure {
  std::string reason;
  /// True if the ranks called different collectives: a DisagreementError.
  bool is_disagreement = false;
  bool is_timeout = false;
};

/// Describes a communication error. `timeout` is the timeout of the operation.
/// Errors of libtorch, gloo and NCCL are classified by their text, because they
/// have no types.
GroupFailure failure_reason(
    const std::exception& error,
    std::chrono::milliseconds timeout);

/// The reason of a failure for want of memory. It is short: to keep it in a
/// string allocates nothing.
inline constexpr const char* kOutOfMemory = "std::bad_alloc";

/// True if an allocation failed: std::bad_alloc, c10::OutOfMemoryError, or a
/// c10::Error whose text reports it, as that of libtorch's allocator for the
/// host does. A CommError never is: it may quote what another rank is short of.
bool is_out_of_memory(const std::exception& error);

/// Rethrows the exception that is being handled, `error`, if an allocation
/// failed. For handlers that make another error of it: this rank is short of
/// memory, and its peers are well.
void rethrow_if_out_of_memory(const std::exception& error);

/// Formats a duration: "300 s", "1.5 s".
std::string format_seconds(std::chrono::milliseconds duration);

} // namespace weft::mesh
