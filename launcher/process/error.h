#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace weft::launcher {

/// Thrown if no worker was started, or if started workers had to be stopped.
/// Exit code 2. The message is one sentence with the cause and the remedy.
class LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws: LaunchError "<what>: <errno's text>".
[[noreturn]] inline void throw_errno(const std::string& what) {
  throw LaunchError(what + ": " + std::strerror(errno));
}

} // namespace weft::launcher
