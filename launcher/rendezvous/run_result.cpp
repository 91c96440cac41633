#include "launcher/rendezvous/run_result.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include <fmt/format.h>

#include "launcher/process/outcome.h"

namespace weft::launcher {
namespace {

bool is_lost(const HostReport& report) {
  return !report.loss.empty();
}

bool has_failed(const HostReport& report) {
  return is_lost(report) || report.end.code != 0;
}

std::string who(const HostReport& report) {
  return fmt::format("host {}, node rank {}", report.host, report.node_rank);
}

std::string ranks(const HostReport& report) {
  const int last = report.first_rank + report.worker_count - 1;
  return report.worker_count == 1
             ? fmt::format("rank {}", last)
             : fmt::format("ranks {} to {}", report.first_rank, last);
}

RunResult of(const HostReport& cause) {
  RunResult run_result;
  if (is_lost(cause)) {
    run_result.code = kPeerLost;
    run_result.line = failure_line(
        kPeerLost,
        fmt::format(
            "{}, {} was lost: {}", who(cause), ranks(cause), cause.loss),
        cause.first_rank);
    return run_result;
  }
  run_result.code = cause.end.code;
  run_result.line = fmt::format("{} ({})", cause.end.line, who(cause));
  return run_result;
}

RunResult of_signal(const std::vector<HostReport>& reports, int signal) {
  const bool alike = std::ranges::all_of(reports, [&](const auto& report) {
    return !is_lost(report) && report.end.code == reports.front().end.code;
  });
  RunResult run_result;
  run_result.code =
      alike ? reports.front().end.code : exit_code_of_signal(signal);
  for (const auto& report : reports) {
    if (run_result.line.empty() && report.end.code == run_result.code) {
      run_result.line = report.end.line;
    }
  }
  if (run_result.line.empty() && run_result.code != 0) {
    run_result.line = failure_line(
        run_result.code, fmt::format("stopped by signal {}", signal));
  }
  return run_result;
}

} // namespace

RunResult decide_result(const std::vector<HostReport>& reports) {
  for (const auto& report : reports) {
    if (!is_lost(report) && report.end.signal != 0) {
      return of_signal(reports, report.end.signal);
    }
  }
  std::vector<HostReport> failed;
  std::ranges::copy_if(reports, std::back_inserter(failed), has_failed);
  if (failed.empty()) {
    return {};
  }
  const auto first = std::ranges::min(failed, {}, &HostReport::failed).failed;
  std::erase_if(failed, [&](const HostReport& report) {
    return !is_lost(report) && report.failed > first + kCauseWindow;
  });
  const auto cause = std::ranges::min(failed, {}, [](const HostReport& report) {
    const bool follows = !is_lost(report) && report.end.lost_peer;
    return std::tuple(follows, report.failed, report.node_rank);
  });
  return of(cause);
}

} // namespace weft::launcher
