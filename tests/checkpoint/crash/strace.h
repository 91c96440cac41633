#pragma once

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/types.h>

namespace weft::test {

/// A call that strace saw: the `when`-th of its name on its thread, which is
/// how strace counts for its faults.
struct TracedCall {
  std::string name;
  int when = 0;
  /// The arguments, with the paths of file descriptors.
  std::string text;
};

/// strace(1), attached to all threads of a process.
class Strace {
 public:
  /// `calls`: "fsync,mkdir"; `fault`: empty, or as after "inject=fsync:".
  /// Blocks until it has the process.
  /// Throws: StraceMissing if there is no strace or it may not.
  Strace(
      pid_t pid,
      const std::string& calls,
      const std::string& fault,
      std::filesystem::path log);
  /// Leaves the process, if it is still there.
  ~Strace();
  Strace(const Strace&) = delete;
  Strace& operator=(const Strace&) = delete;

 private:
  bool ends_within(std::chrono::milliseconds limit);

  pid_t strace_;
  bool kills_ = false;
};

class StraceMissing : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The calls in a log, first things first.
std::vector<TracedCall> read_strace_log(const std::filesystem::path& log);

} // namespace weft::test
