#include "launcher/report/report.h"

#include <algorithm>
#include <ctime>

#include <signal.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/process/signals.h"
#include "launcher/report/backtrace.h"

namespace weft::launcher {
namespace {

constexpr size_t kFrames = 12;
constexpr int64_t kMebibyte = 1 << 20;

std::string local_time(std::chrono::system_clock::time_point when) {
  using std::chrono::milliseconds;
  const auto since =
      std::chrono::duration_cast<milliseconds>(when.time_since_epoch());
  const std::time_t seconds = since.count() / 1000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char text[32] = "";
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return fmt::format("{}.{:03d}", text, since.count() % 1000);
}

std::string by_kernel(const WorkerExit& exit) {
  std::string text = "out of memory: killed by the kernel";
  if (exit.peak_rss_bytes > 0) {
    text += fmt::format(" at {} MiB", exit.peak_rss_bytes / kMebibyte);
  }
  if (exit.memory_limit_bytes > 0) {
    text += fmt::format(" (limit {} MiB)", exit.memory_limit_bytes / kMebibyte);
  }
  return text;
}

std::string describe(const WorkerExit& exit) {
  if (exit.failure_cause == FailureCause::kOutOfMemory) {
    return by_kernel(exit);
  }
  std::string text =
      exit.signal == 0
          ? fmt::format("exit code {}", exit.code)
          : fmt::format(
                "signal {} ({})", exit.signal, signal_name(exit.signal));
  if (exit.failure_cause == FailureCause::kBadAlloc) {
    text += ", out of memory: an allocation failed";
    if (exit.peak_rss_bytes > 0) {
      text += fmt::format(" at {} MiB", exit.peak_rss_bytes / kMebibyte);
    }
  } else if (exit.failure_cause == FailureCause::kSigkillSourceUnknown) {
    text += " from another process; not an OOM kill";
  }
  return text;
}

std::string printable(const std::string& line) {
  std::string result;
  for (const char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

std::string failed_rank_line(
    const WorkerExit& exit,
    bool is_cause,
    const std::string& host) {
  const bool sigkill_source_unknown = exit.signal == SIGKILL && !exit.stopped &&
                                      exit.failure_cause == FailureCause::kNone;
  return fmt::format(
      "  rank {:<4} pid {:<8} {}{}, {} on {}{}{}\n",
      exit.rank,
      exit.pid,
      describe(exit),
      sigkill_source_unknown ? " (out of memory? see dmesg)" : "",
      local_time(failure_time(exit)),
      exit.host.empty() ? host : exit.host,
      exit.failure_cause == FailureCause::kTimedOut ? " (timed out)"
      : is_peer_loss(exit)                          ? " (lost a peer)"
                                                    : "",
      !is_cause            ? ""
      : is_peer_loss(exit) ? "  <- first to say so"
                           : "  <- first cause");
}

std::string join(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}

std::string indent(const std::string& title, const auto& lines) {
  std::string text = fmt::format("  {}:\n", title);
  for (const auto& line : lines) {
    text += fmt::format("    | {}\n", printable(line));
  }
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Returns true if stderr has all lines of the error file's message.
bool is_said(
    const std::vector<std::string>& message,
    const std::vector<std::string>& said) {
  return std::ranges::all_of(message, [&](const std::string& line) {
    return std::ranges::any_of(said, [&](const std::string& other) {
      return other.find(line) != std::string::npos;
    });
  });
}

std::string stderr_tail(const WorkerExit& exit, const ReportSources& sources) {
  const int rank = exit.rank;
  std::string text;
  const auto lines = sources.tail(rank).lines();
  if (lines.empty()) {
    text += fmt::format("  rank {} wrote nothing to stderr\n", rank);
  } else {
    text += indent(fmt::format("last output of rank {}", rank), lines);
  }
  const auto message = split_lines(exit.error.message);
  if (!is_said(message, lines)) {
    text += indent(fmt::format("error file of rank {}", rank), message);
  }
  const auto frames = readable_frames(exit.error.callstack, kFrames);
  if (!frames.empty()) {
    text += indent(fmt::format("backtrace of rank {}", rank), frames);
  }
  return text;
}

/// Returns the ERROR line of the root cause. If it has none, returns that of a
/// rank with the same exit code, because often only rank 0 prints what all
/// ranks found.
std::string workers_error_line(
    const Outcome& outcome,
    const WorkerExit* cause,
    int code,
    const ReportSources& sources) {
  if (cause != nullptr) {
    auto line = sources.tail(cause->rank).error_line(code);
    if (!line.empty()) {
      return line;
    }
  }
  for (const auto& exit : outcome.exits) {
    if (exit.code == code) {
      auto line = sources.tail(exit.rank).error_line(code);
      if (!line.empty()) {
        return line;
      }
    }
  }
  return "";
}

std::string
own_error_line(const Outcome& outcome, const WorkerExit* cause, int code) {
  if (outcome.requested_signal != 0) {
    const std::string how =
        outcome.killed ? "; workers did not exit in time and were killed" : "";
    const int rank = cause != nullptr ? cause->rank : 0;
    return failure_line(
        code,
        fmt::format(
            "stopped by signal {} ({}){}",
            outcome.requested_signal,
            signal_name(outcome.requested_signal),
            how),
        rank);
  }
  const char* how = cause->failure_cause == FailureCause::kOutOfMemory ? ""
                    : cause->signal != 0 ? "killed by "
                                         : "ended with ";
  return failure_line(
      code, fmt::format("worker {}{}", how, describe(*cause)), cause->rank);
}

/// Returns the worker that the report is about. This is the root cause or, if a
/// signal requested the end of the run, the first worker that did not end as
/// requested.
std::optional<WorkerExit> culprit(
    const Outcome& outcome,
    const std::optional<WorkerExit>& cause) {
  if (outcome.requested_signal == 0) {
    return cause;
  }
  for (const auto& exit : outcome.exits) {
    if (exit.code != 0 && exit.code != kPreempted &&
        exit.code != 128 + outcome.requested_signal) {
      return exit;
    }
  }
  return std::nullopt;
}

std::string who_failed(
    const Outcome& outcome,
    const WorkerExit& cause,
    const ReportSources& sources) {
  std::string failed;
  std::vector<int> stopped;
  int count = 0;
  auto exits = outcome.exits;
  std::ranges::stable_sort(exits, {}, failure_time);
  for (const auto& exit : exits) {
    if (exit.code != 0 &&
        (!was_stopped_by_launcher(exit) || exit.rank == cause.rank)) {
      failed += failed_rank_line(exit, exit.rank == cause.rank, sources.host);
      ++count;
    } else if (exit.stopped) {
      stopped.push_back(exit.rank);
    }
  }
  std::ranges::sort(stopped);
  std::string text = fmt::format(
      "{} of {} workers failed\n{}", count, sources.worker_count, failed);
  if (!stopped.empty()) {
    text += fmt::format(
        "  then ended by weftrun{}: rank {}\n",
        outcome.killed ? ", some by SIGKILL" : "",
        join(stopped));
  }
  return text + stderr_tail(cause, sources);
}

} // namespace

Report report(
    const Outcome& outcome,
    const std::optional<WorkerExit>& cause,
    const ReportSources& sources) {
  const int code = exit_code(outcome, cause);
  if (code == 0) {
    return {};
  }
  const auto found = culprit(outcome, cause);
  const WorkerExit* subject = found ? &*found : nullptr;
  Report result;
  if (subject != nullptr) {
    result.text += who_failed(outcome, *subject, sources);
  }
  if (!outcome.stuck.empty()) {
    result.text += fmt::format(
        "  rank {} did not exit after SIGKILL: it is blocked in the kernel\n",
        join(outcome.stuck));
  }
  if (!sources.logs.empty()) {
    result.text += fmt::format("  logs: {}\n", sources.logs.string());
  }
  // The logger ends the text, and without failed ranks the first line is not
  // below another one.
  if (result.text.ends_with('\n')) {
    result.text.pop_back();
  }
  if (subject == nullptr) {
    result.text.erase(0, result.text.find_first_not_of(' '));
  }
  result.line = workers_error_line(outcome, subject, code, sources);
  if (result.line.empty()) {
    result.line = own_error_line(outcome, subject, code);
  }
  return result;
}

} // namespace weft::launcher
