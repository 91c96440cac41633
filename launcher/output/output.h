#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"
#include "launcher/options/options.h"
#include "launcher/output/line_tail.h"
#include "launcher/output/log_dir.h"
#include "launcher/output/sink.h"
#include "launcher/process/local_ranks.h"

namespace weft::launcher {

/// The standard streams of a worker. It inherits this process's stream where a
/// descriptor is empty.
struct WorkerStreams {
  base::UniqueFd input;
  base::UniqueFd output;
  base::UniqueFd error;
};

/// Forwards the workers' output to the console and to files without blocking,
/// and keeps the last lines of each standard error.
class Output {
 public:
  Output(const Options& options, const LogDir& logs);
  ~Output();

  /// Discards the workers of an earlier attempt, whose output must have been
  /// drained.
  void begin_attempt(int first_rank, LocalRanks workers);
  /// Opens the streams of a worker. Standard output is inherited unless a flag
  /// redirects it; standard error goes through a pipe.
  WorkerStreams open(int local_rank);
  /// Returns true if the worker's standard error reaches a terminal unchanged.
  bool stderr_is_terminal(int local_rank) const;

  /// Blocks until there is output, space to write it, or `fd` (may be -1) is
  /// readable. Forwards the available output and returns true if `fd` is
  /// readable.
  bool wait(int fd, std::chrono::milliseconds timeout);
  /// Forwards the output that ended workers left in their pipes. Waits only
  /// briefly for a pipe that another process still holds open.
  void drain(LocalRanks workers);
  /// Returns true if data must still be written to the console.
  bool pending() const;
  /// Writes a line to this process's standard error, after the output of the
  /// workers. Does nothing if `line` is empty.
  void write_line(std::string_view line);
  /// The log of weftrun, which uses write_line().
  const base::Logger& log() const { return log_; }

  /// Returns the last lines of a worker's standard error, read from a file if
  /// it was redirected to one.
  LineTail tail(int local_rank) const;

 private:
  struct File;
  struct Filtered;
  struct Pipe;

  base::UniqueFd open_pipe(int local_rank, int stream);
  std::filesystem::path log_of(int local_rank, int stream) const;
  bool shown(int local_rank) const;
  bool any_open(LocalRanks workers) const;
  bool move(int fd, std::chrono::milliseconds timeout, bool even_if_full);
  void read_pipe(Pipe& pipe);
  void forward(Pipe& pipe, std::string_view bytes);
  void close_pipe(Pipe& pipe);

  const Options& options_;
  const LogDir& logs_;
  int first_rank_ = 0;
  Sink console_output_;
  Sink console_error_;
  base::Logger log_;
  /// The folder of the files of filtered lines.
  std::optional<std::filesystem::path> filtered_folder_;
  /// Null without a filter.
  std::unique_ptr<Filtered> filtered_output_;
  std::unique_ptr<Filtered> filtered_error_;
  std::vector<std::unique_ptr<Pipe>> pipes_;
  std::vector<LineTail> tails_;
  std::string buffer_;
};

/// Returns the prefix of --tee for one worker.
std::string expand_prefix(
    std::string_view line_template,
    const std::string& role,
    int local_rank,
    int rank);

} // namespace weft::launcher
