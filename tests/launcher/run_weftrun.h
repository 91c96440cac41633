#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "base/unique_fd.h"

namespace weft::launcher {

/// A running weftrun, the real program, with its three streams in our hands.
class WeftrunProcess {
 public:
  using Variables = std::map<std::string, std::string>;

  /// Starts `weftrun arguments...` with `variables` added to an environment
  /// that is free of a launcher's.
  explicit WeftrunProcess(
      const std::vector<std::string>& arguments,
      const Variables& variables = {});
  /// Kills it if it still runs.
  ~WeftrunProcess();

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  void close_input() { input_.reset(); }
  void close_error() { error_.reset(); }

  /// Reads until standard output or standard error has `count` times `text`.
  /// Throws: std::runtime_error after a minute, or at the end of both.
  void wait_for(std::string_view text, int count = 1);
  /// Reads both to their ends and returns the exit code, 128 + signal for a
  /// signal.
  int wait();

  const std::string& output() const { return output_text_; }
  const std::string& error() const { return error_text_; }
  std::string last_error_line() const;

 private:
  /// False at the end of both streams.
  bool read_some();

  pid_t pid_ = -1;
  base::UniqueFd input_;
  base::UniqueFd output_;
  base::UniqueFd error_;
  std::string output_text_;
  std::string error_text_;
};

/// Arguments for `nproc` workers that run a shell script.
std::vector<std::string> shell(
    int nproc,
    const std::string& script,
    std::vector<std::string> flags = {});

int count(std::string_view text, std::string_view part);
std::vector<std::string> lines_of(const std::string& text);
std::string read_file(const std::filesystem::path& path);

/// Whether the process does not run (a zombie does not) within `limit`.
bool gone_within(pid_t pid, std::chrono::milliseconds limit);

} // namespace weft::launcher
