#include "launcher/options/options.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <unistd.h>

#include <fmt/format.h>

#include "base/parse_int.h"
#include "launcher/options/command_line.h"
#include "launcher/options/worker_count.h"
#include "launcher/process/error.h"
#include "launcher/process/signals.h"
#include "launcher/process/virtual_device.h"

namespace weft::launcher {
namespace {

std::vector<int> parse_local_ranks(const std::string& text, int count) {
  std::vector<int> ranks;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const auto rank = base::parse_int(part, 0, count - 1);
    if (!rank) {
      throw LaunchError(fmt::format(
          "--local-ranks-filter {}: '{}' is not a local rank from 0 to {}.",
          text,
          part,
          count - 1));
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

/// Parses a filter of the streams that --tee selects. Without --tee, or without
/// a log folder, the filtered lines would be written nowhere.
LineFilter parse_filter(
    std::string_view stream_name,
    const std::string& text,
    int stream,
    const Options& options) {
  const std::string flag = fmt::format("--duplicate-{}-filters", stream_name);
  LineFilter filter = LineFilter::parse(flag, text);
  if (!filter.any()) {
    return filter;
  }
  if (options.log_dir.empty()) {
    throw LaunchError(fmt::format(
        "{} writes filtered_{}.log to the log folder. Set --log-dir.",
        flag,
        stream_name));
  }
  for (int rank = 0; rank < options.worker_count; ++rank) {
    if (options.tee.has(rank, stream)) {
      return filter;
    }
  }
  throw LaunchError(fmt::format(
      "{} filters the output that --tee selects, but --tee selects no worker's "
      "{}. Add --tee {} (3 selects both streams).",
      flag,
      stream_name,
      stream));
}

// The flag overrides the environment variable.
std::optional<base::LogLevel> log_level(const std::string& flag) {
  const char* variable = std::getenv(base::kLogLevelVariable);
  const bool is_set = variable != nullptr && *variable != '\0';
  const auto level = !flag.empty() ? std::optional(flag)
                     : is_set      ? std::optional<std::string>(variable)
                                   : std::nullopt;
  if (const auto error = base::log_level_error(level); !error.empty()) {
    throw LaunchError(error + ".");
  }
  return base::log_level_of(level.value_or(""));
}

void set_output(const Flags& flags, Options& options) {
  options.log_level = log_level(flags.log_level);
  options.log_dir = flags.log_dir;
  options.redirects = StreamSelection::parse("--redirects", flags.redirects);
  options.tee = StreamSelection::parse("--tee", flags.tee);
  const int named =
      std::max(options.redirects.max_rank(), options.tee.max_rank());
  if (named >= options.worker_count) {
    throw LaunchError(fmt::format(
        "--redirects or --tee names local rank {}, but there are {} workers.",
        named,
        options.worker_count));
  }
  options.local_ranks_filter =
      parse_local_ranks(flags.local_ranks_filter, options.worker_count);
  options.stdout_filter = parse_filter(
      "stdout",
      flags.duplicate_stdout_filters,
      StreamSelection::kStdout,
      options);
  options.stderr_filter = parse_filter(
      "stderr",
      flags.duplicate_stderr_filters,
      StreamSelection::kStderr,
      options);
  const char* prefix = std::getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (!flags.log_line_prefix_template.empty()) {
    options.log_line_prefix_template = flags.log_line_prefix_template;
  } else if (prefix != nullptr && *prefix != '\0') {
    options.log_line_prefix_template = prefix;
  }
}

void check_replica_groups(const Options& options) {
  if (options.replica_size == 0) {
    return;
  }
  if (options.hosts.node_count > 1) {
    throw LaunchError(fmt::format(
        "--replica-size {} works on one host, but --nnodes is {}. Leave one of "
        "them out.",
        options.replica_size,
        options.hosts.node_count));
  }
  if (options.worker_count % options.replica_size != 0) {
    throw LaunchError(fmt::format(
        "--replica-size {} does not divide the {} workers of "
        "--nproc-per-node. Start a multiple of {} workers.",
        options.replica_size,
        options.worker_count,
        options.replica_size));
  }
  if (options.hosts.port != 0) {
    throw LaunchError(fmt::format(
        "--master-port {} cannot be the port of every replica group. Leave it "
        "out: each group chooses a free port.",
        options.hosts.port));
  }
}

Options check(const Flags& flags) {
  Options options;
  options.hosts = check_hosts(flags.hosts);
  options.max_restarts = flags.max_restarts;
  options.worker_count = worker_count(flags.nproc_per_node);
  options.replica_size = flags.replica_size;
  check_replica_groups(options);
  options.numa_binding = parse_numa_binding(flags.numa_binding);
  options.virtual_local_rank = flags.virtual_local_rank;
  if (flags.virtual_local_rank) {
    check_virtual_devices(options.worker_count);
  }
  options.role = flags.role;
  if (!flags.rdzv_id.empty()) {
    options.run_id = flags.rdzv_id;
  } else if (flags.hosts.standalone) {
    options.run_id = fmt::format(
        "{:x}-{:x}",
        std::chrono::system_clock::now().time_since_epoch().count(),
        getpid());
  }
  set_output(flags, options);
  options.signals = parse_signals(flags.signals_to_handle);
  options.shutdown_timeout = std::chrono::milliseconds(
      static_cast<int64_t>(flags.shutdown_timeout * 1000));
  return options;
}

} // namespace

ParsedCommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line = read_command_line(argc, argv);
  if (!line.text.empty()) {
    return {.options = std::nullopt, .text = std::move(line.text)};
  }
  Options options = check(line.flags);
  if (line.command.empty()) {
    throw LaunchError(
        "no program to start. Usage: weftrun [flags] [--] program args...");
  }
  options.command = std::move(line.command);
  return {.options = std::move(options), .text = ""};
}

} // namespace weft::launcher
