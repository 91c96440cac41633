#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <c10/util/Exception.h>

#include "base/exit_code.h"
#include "base/string_streams.h"

namespace weft::mesh {

using base::ExitCode;

/// The context of an error: "rank 3/8, mesh dp=2 tp=4, ...". Built only on
/// failure.
struct ErrorContext {
  /// The context as text.
  std::string text;

  /// Returns " (text)", or "" if the text is empty.
  std::string in_parentheses() const {
    return text.empty() ? "" : " (" + text + ")";
  }
};

/// Thrown if a collective or the rendezvous failed: a peer is gone or a timeout
/// expired.
class CommError : public c10::DistBackendError {
  using c10::DistBackendError::DistBackendError;
};

/// Thrown if a wait for another rank has timed out.
class TimeoutError : public CommError {
  using CommError::CommError;
};

/// Thrown on every rank when a value that must be identical on all ranks
/// differs.
class DisagreementError : public c10::Error {
  using c10::Error::Error;
};

/// Thrown for a recipe, command line or environment that cannot be used.
class UsageError : public c10::ValueError {
  using c10::ValueError::ValueError;
};

namespace detail {
template <class... Args>
std::string concat(const Args&... args) {
  base::StringWriter out;
  (out << ... << args);
  return out.str();
}
[[noreturn]] void throw_value_error(
    const char* file,
    int line,
    const char* function,
    std::string message);
} // namespace detail

/// Throws E with `message`. (The constructors of c10 errors take a
/// SourceLocation first.)
template <class E>
[[noreturn]] void throw_error(
    std::string message,
    c10::SourceLocation where = {"", "", 0}) {
  throw E(where, std::move(message));
}

/// Throws TimeoutError if `is_timeout`, and CommError otherwise.
[[noreturn]] void throw_comm_error(std::string message, bool is_timeout);

/// Returns the first line of libtorch's message, without the source location.
std::string first_line_of(const c10::Error& error);

} // namespace weft::mesh

/// Throws c10::ValueError "[op] text. (context)" unless `condition`. `where` is
/// an expression of type ErrorContext, evaluated only on failure. An empty
/// context is left out.
#define WEFT_CHECK(condition, op, where, ...)                         \
  do {                                                                \
    if (!(condition)) [[unlikely]] {                                  \
      ::weft::mesh::detail::throw_value_error(                        \
          __FILE__,                                                   \
          __LINE__,                                                   \
          __func__,                                                   \
          ::weft::mesh::detail::concat(                               \
              "[", op, "] ", __VA_ARGS__, (where).in_parentheses())); \
    }                                                                 \
  } while (false)
