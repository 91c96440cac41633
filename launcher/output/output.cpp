#include "launcher/output/output.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "launcher/output/sink.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 1 << 16;
/// The longest wait for a pipe that another process holds open after its worker
/// has ended.
constexpr milliseconds kQuiet{200};

base::UniqueFd create_file(const std::filesystem::path& path) {
  // O_APPEND is needed if a worker passes the file to processes of its own.
  base::UniqueFd fd(::open(
      path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600));
  if (!fd) {
    throw_errno("log " + path.string());
  }
  return fd;
}

base::UniqueFd open_null(int flags) {
  base::UniqueFd fd(::open("/dev/null", flags | O_CLOEXEC));
  if (!fd) {
    throw_errno("/dev/null");
  }
  return fd;
}

void replace_all(
    std::string& text,
    std::string_view from,
    const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;
       at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

} // namespace

std::string expand_prefix(
    std::string_view line_template,
    const std::string& role,
    int local_rank,
    int rank) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  std::string prefix(line_template);
  replace_all(prefix, "${role_name}", role);
  replace_all(prefix, "${local_rank}", std::to_string(local_rank));
  replace_all(prefix, "${rank}", std::to_string(rank));
  replace_all(prefix, "${hostname}", host);
  return prefix;
}

struct Output::File {
  explicit File(const std::filesystem::path& path)
      : fd(create_file(path)), sink(fd.get()) {}

  base::UniqueFd fd;
  Sink sink;
};

struct Output::Filtered {
  Filtered(const LineFilter& lines, const std::filesystem::path& path)
      : filter(lines), file(path) {}

  const LineFilter& filter;
  File file;
};

/// A pipe from one stream of one worker, and the destinations of its bytes.
struct Output::Pipe {
  /// Returns the line as it is shown. Writes it to `filtered` if it matches.
  std::string prefixed(std::string_view line) {
    std::string text = prefix;
    text += line;
    if (filtered != nullptr && filtered->filter.matches(line)) {
      filtered->file.sink.push(text);
    }
    return text;
  }

  int local_rank = 0;
  base::UniqueFd read_end;
  /// nullptr means that output is not shown.
  Sink* console = nullptr;
  /// The log file with --tee. Then only complete lines go to the console and to
  /// `filtered`.
  std::unique_ptr<File> file;
  std::string prefix;
  LineBuffer lines{kReadBytes};
  /// nullptr disables line filters.
  Filtered* filtered = nullptr;
  LineTail* tail = nullptr;
};

Output::Output(const Options& options, const LogDir& logs)
    : options_(options),
      logs_(logs),
      console_output_(STDOUT_FILENO),
      console_error_(STDERR_FILENO),
      log_(
          {.least = options.log_level.value_or(base::LogLevel::kInfo),
           .source = "weftrun:",
           .is_colored = isatty(STDERR_FILENO) == 1,
           .write = [this](const std::string& line) { write_line(line); }}),
      tails_(static_cast<size_t>(options.worker_count)),
      buffer_(kReadBytes, '\0') {}

Output::~Output() = default;

bool Output::shown(int local_rank) const {
  const auto& filter = options_.local_ranks_filter;
  return filter.empty() || std::ranges::count(filter, local_rank) > 0;
}

bool Output::stderr_is_terminal(int local_rank) const {
  constexpr int kStderr = StreamSelection::kStderr;
  return isatty(STDERR_FILENO) == 1 && shown(local_rank) &&
         !options_.redirects.has(local_rank, kStderr) &&
         !options_.tee.has(local_rank, kStderr);
}

void Output::begin_attempt(int first_rank, LocalRanks workers) {
  first_rank_ = first_rank;
  std::erase_if(
      pipes_, [&](const auto& pipe) { return workers.has(pipe->local_rank); });
  for (int rank = workers.first; rank < workers.end(); ++rank) {
    tails_[static_cast<size_t>(rank)] = LineTail();
  }
  // If all workers start together, each attempt has its own files. Otherwise
  // the first files remain.
  if (workers.count < options_.worker_count && filtered_folder_) {
    return;
  }
  filtered_folder_ = logs_.attempt(workers.first);
  const auto open_filtered = [&](const LineFilter& filter, const char* name) {
    return filter.any()
               ? std::make_unique<Filtered>(filter, *filtered_folder_ / name)
               : nullptr;
  };
  filtered_output_ =
      open_filtered(options_.stdout_filter, "filtered_stdout.log");
  filtered_error_ =
      open_filtered(options_.stderr_filter, "filtered_stderr.log");
}

WorkerStreams Output::open(int local_rank) {
  WorkerStreams streams;
  if (local_rank != 0) {
    streams.input = open_null(O_RDONLY);
  }
  constexpr int kStdout = StreamSelection::kStdout;
  if (options_.tee.has(local_rank, kStdout)) {
    streams.output = open_pipe(local_rank, kStdout);
  } else if (options_.redirects.has(local_rank, kStdout)) {
    streams.output = create_file(log_of(local_rank, kStdout));
  } else if (!shown(local_rank)) {
    streams.output = open_null(O_WRONLY);
  }
  constexpr int kStderr = StreamSelection::kStderr;
  if (options_.redirects.has(local_rank, kStderr) &&
      !options_.tee.has(local_rank, kStderr)) {
    streams.error = create_file(log_of(local_rank, kStderr));
  } else {
    streams.error = open_pipe(local_rank, kStderr);
  }
  return streams;
}

std::filesystem::path Output::log_of(int local_rank, int stream) const {
  return logs_.file(
      local_rank,
      stream == StreamSelection::kStdout ? "stdout.log" : "stderr.log");
}

base::UniqueFd Output::open_pipe(int local_rank, int stream) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw_errno("pipe");
  }
  base::UniqueFd write_end(ends[1]);
  auto pipe = std::make_unique<Pipe>();
  pipe->local_rank = local_rank;
  pipe->read_end = base::UniqueFd(ends[0]);
  // Only this end is non-blocking. The worker's end blocks.
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const bool is_error = stream == StreamSelection::kStderr;
  if (shown(local_rank)) {
    pipe->console = is_error ? &console_error_ : &console_output_;
  }
  if (options_.tee.has(local_rank, stream)) {
    pipe->prefix = expand_prefix(
        options_.log_line_prefix_template,
        options_.role,
        local_rank,
        first_rank_ + local_rank);
    pipe->file = std::make_unique<File>(log_of(local_rank, stream));
    pipe->filtered = is_error ? filtered_error_.get() : filtered_output_.get();
  }
  if (is_error) {
    pipe->tail = &tails_[static_cast<size_t>(local_rank)];
  }
  pipes_.push_back(std::move(pipe));
  return write_end;
}

bool Output::wait(int fd, milliseconds timeout) {
  return move(fd, timeout, /*even_if_full=*/false);
}

bool Output::move(int fd, milliseconds timeout, bool even_if_full) {
  std::vector<pollfd> polled{{.fd = fd, .events = POLLIN, .revents = 0}};
  std::vector<Pipe*> readable;
  for (const auto& pipe : pipes_) {
    // Does not read if the console is behind. The worker then blocks, as it
    // would if it wrote to the console directly.
    const bool held = pipe->console != nullptr && pipe->console->full();
    if (pipe->read_end && (even_if_full || !held)) {
      readable.push_back(pipe.get());
      polled.push_back(
          {.fd = pipe->read_end.get(), .events = POLLIN, .revents = 0});
    }
  }
  for (Sink* sink : {&console_output_, &console_error_}) {
    if (sink->pending()) {
      polled.push_back({.fd = sink->fd(), .events = POLLOUT, .revents = 0});
    }
  }
  if (poll(polled.data(), polled.size(), static_cast<int>(timeout.count())) <=
      0) {
    return false; // After a timeout or EINTR the caller calls again.
  }
  console_output_.write_some();
  console_error_.write_some();
  for (size_t i = 0; i < readable.size(); ++i) {
    if (polled[i + 1].revents != 0) {
      read_pipe(*readable[i]);
    }
  }
  return (polled[0].revents & POLLIN) != 0;
}

void Output::read_pipe(Pipe& pipe) {
  const ssize_t size =
      read(pipe.read_end.get(), buffer_.data(), buffer_.size());
  if (size > 0) {
    forward(pipe, std::string_view(buffer_).substr(0, size));
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    close_pipe(pipe);
  }
}

void Output::forward(Pipe& pipe, std::string_view bytes) {
  if (pipe.tail != nullptr) {
    pipe.tail->append(bytes);
  }
  if (pipe.file != nullptr) {
    pipe.file->sink.push(bytes);
  }
  if (pipe.console == nullptr) {
    return;
  }
  if (pipe.file == nullptr) {
    pipe.console->push(bytes);
    return;
  }
  std::string lines;
  pipe.lines.append(
      bytes, [&](std::string_view line) { lines += pipe.prefixed(line); });
  pipe.console->push(lines);
}

void Output::close_pipe(Pipe& pipe) {
  pipe.lines.finish(
      [&](std::string_view line) { pipe.console->push(pipe.prefixed(line)); });
  pipe.read_end.reset();
}

bool Output::any_open(LocalRanks workers) const {
  return std::ranges::any_of(pipes_, [&](const auto& pipe) {
    return pipe->read_end && workers.has(pipe->local_rank);
  });
}

bool Output::pending() const {
  return console_output_.pending() || console_error_.pending();
}

void Output::drain(LocalRanks workers) {
  const auto deadline = Clock::now() + kQuiet;
  for (auto left = kQuiet; any_open(workers) && left.count() > 0;
       left = std::chrono::ceil<milliseconds>(deadline - Clock::now())) {
    move(-1, left, /*even_if_full=*/true);
  }
  for (const auto& pipe : pipes_) {
    if (workers.has(pipe->local_rank)) {
      close_pipe(*pipe);
    }
  }
}

void Output::write_line(std::string_view line) {
  if (line.empty()) {
    return;
  }
  if (console_error_.mid_line()) {
    console_error_.push("\n");
  }
  console_error_.push(line);
  console_error_.push("\n");
}

LineTail Output::tail(int local_rank) const {
  constexpr int kStderr = StreamSelection::kStderr;
  if (options_.tee.has(local_rank, kStderr) ||
      !options_.redirects.has(local_rank, kStderr)) {
    return tails_[static_cast<size_t>(local_rank)];
  }
  LineTail tail;
  const auto path = logs_.file(local_rank, "stderr.log");
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const off_t size = lseek(fd.get(), 0, SEEK_END);
  std::string bytes(kReadBytes, '\0');
  const off_t start = std::max<off_t>(0, size - off_t(bytes.size()));
  const ssize_t count = pread(fd.get(), bytes.data(), bytes.size(), start);
  if (count > 0) {
    tail.append(std::string_view(bytes).substr(0, size_t(count)));
  }
  return tail;
}

} // namespace weft::launcher
