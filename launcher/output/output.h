#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/options/options.h"
#include "launcher/output/line_tail.h"
#include "launcher/output/log_dir.h"
#include "launcher/output/sink.h"

namespace weft::launcher {

/// What a worker gets as standard streams; without a descriptor it inherits
/// this process's.
struct WorkerStreams {
  base::UniqueFd input;
  base::UniqueFd output;
  base::UniqueFd error;
};

/// Carries the workers' output to the console and to files, without ever
/// blocking, and remembers the last lines of each standard error.
class Output {
 public:
  Output(const Options& options, const LogDir& logs);
  ~Output();

  /// Forgets the workers of an earlier attempt, whose output is drained.
  void begin_attempt(int first_rank);
  /// Opens the streams of a worker. Standard output is inherited unless a flag
  /// says otherwise; standard error comes through a pipe.
  WorkerStreams open(int local_rank);
  /// Whether the worker's standard error goes as it is to a terminal.
  bool stderr_is_terminal(int local_rank) const;

  /// Waits for output, for room to write it or for `fd` (may be -1) to become
  /// readable, moves what there is, and says whether `fd` is readable.
  bool wait(int fd, std::chrono::milliseconds timeout);
  /// Takes what ended workers have left in the pipes; a pipe that somebody
  /// still holds open is waited on for a moment only.
  void drain();
  /// Whether something is still to be written to the console.
  bool pending() const;
  /// Adds lines to this process's standard error, after what the workers
  /// wrote.
  void log_line(std::string_view lines);

  /// The last lines of a worker's standard error, from a file if it went to
  /// one.
  LineTail tail(int local_rank) const;

 private:
  struct File;
  struct Filtered;
  struct Pipe;

  base::UniqueFd open_pipe(int local_rank, int stream);
  std::filesystem::path log_of(int local_rank, int stream) const;
  bool shown(int local_rank) const;
  bool any_open() const;
  bool move(int fd, std::chrono::milliseconds timeout, bool even_if_full);
  void read_pipe(Pipe& pipe);
  void forward(Pipe& pipe, std::string_view bytes);
  void close_pipe(Pipe& pipe);

  const Options& options_;
  const LogDir& logs_;
  int first_rank_ = 0;
  Sink console_output_;
  Sink console_error_;
  /// Null without a filter.
  std::unique_ptr<Filtered> filtered_output_;
  std::unique_ptr<Filtered> filtered_error_;
  std::vector<std::unique_ptr<Pipe>> pipes_;
  std::vector<LineTail> tails_;
  std::string buffer_;
};

/// The prefix of --tee for one worker.
std::string expand_prefix(
    std::string_view line_template,
    const std::string& role,
    int local_rank,
    int rank);

} // namespace weft::launcher
