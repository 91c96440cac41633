#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace weft::test {

/// A process that may not be our child, watched from now until it ends.
class ProcessWatch {
 public:
  /// Throws: std::runtime_error if there is no such process.
  explicit ProcessWatch(pid_t pid);
  ProcessWatch(ProcessWatch&& other) noexcept;
  ProcessWatch& operator=(ProcessWatch&&) = delete;
  ~ProcessWatch();

  pid_t pid() const { return pid_; }
  bool ends_within(std::chrono::milliseconds limit) const;

 private:
  pid_t pid_;
  int fd_;
};

/// A program under test. Its output goes to files without names, so nothing
/// has to be read while it runs.
class Process {
 public:
  using Variables = std::map<std::string, std::string>;

  /// Starts `words` in `folder`, with `variables` on top of an environment
  /// that is free of a launcher's and gives each process one thread.
  Process(
      std::vector<std::string> words,
      const std::filesystem::path& folder,
      const Variables& variables = {});
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  /// Kills it if it still runs.
  ~Process();

  pid_t pid() const { return watch_->pid(); }
  void send(int signal) const;

  /// The exit code, 128 + signal for a signal; none if it runs on.
  std::optional<int> wait(
      std::chrono::seconds limit = std::chrono::seconds(60));

  std::string output() const;
  std::string error() const;
  std::string last_error_line() const;

 private:
  int output_;
  int error_;
  std::optional<ProcessWatch> watch_;
  std::optional<int> code_;
};

/// Makes each Process of the program at `path` a fork of this one that calls
/// `main`: to load libtorch takes longer than most commands of `weft`. The file
/// is executed all the same where this program has several threads, and where
/// libraries may read another environment when they are loaded: with variables
/// other than a rank's, or if OMP_NUM_THREADS is not 1 here.
void start_by_fork(std::string path, std::function<int(int, char**)> main);

std::vector<std::string> lines_of(const std::string& text);
std::string read_text(const std::filesystem::path& path);

/// The children of `parent` by their RANK.
std::map<int, ProcessWatch> workers_of(pid_t parent);

/// A TCP port of the loopback address that nobody listens at.
int free_port();

} // namespace weft::test
