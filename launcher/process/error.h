#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace weft::launcher {

/// Nothing was started, or what was started had to go: exit code 2. The
/// message is one sentence that names the thing and the way out.
class LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws: LaunchError "<what>: <errno's text>".
[[noreturn]] inline void throw_errno(const std::string& what) {
  throw LaunchError(what + ": " + std::strerror(errno));
}

} // namespace weft::launcher
