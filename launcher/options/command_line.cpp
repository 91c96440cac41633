#include "launcher/options/command_line.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <optional>
#include <type_traits>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/edit_distance.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: weftrun [flags] [--] program args...\n";
  }
};

/// The flags and their environment variables. A flag that is bound to a bool
/// takes no value.
class FlagTable {
 public:
  explicit FlagTable(CLI::App& app) : app_(app) {}

  template <typename T>
  CLI::Option* add(const std::string& names, T& value, const char* help) {
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<T, bool>) {
      option = app_.add_flag(names, value, help);
    } else {
      option = app_.add_option(names, value, help);
    }
    std::string variable = "PET_" + option->get_lnames().front();
    for (char& c : variable) {
      c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
    }
    return option->envname(variable)->take_last();
  }

 private:
  CLI::App& app_;
};

void add_process_flags(FlagTable& table, Flags& flags) {
  table.add(
      "--nproc-per-node",
      flags.nproc_per_node,
      "Number of workers: a number, cpu, gpu, or auto (gpu if there is one, "
      "otherwise cpu)");
  table
      .add(
          "--max-restarts",
          flags.max_restarts,
          "Maximum number of restarts of all workers, after exit code 1 or 128 "
          "and above; other codes are not retried. With --replica-size: of "
          "each group")
      ->check(CLI::Range(0, 1000000));
  table
      .add(
          "--replica-size",
          flags.replica_size,
          "Number of workers of a replica group: the workers of this host are "
          "split into groups that each have a WORLD_SIZE of their own, and a "
          "group that fails is restarted alone (default: no groups)")
      ->check(CLI::Range(1, 1000000));
  table.add(
      "--monitor-interval",
      flags.monitor_interval,
      "Accepted and ignored: weftrun detects an exit immediately");
  table.add("--role", flags.role, "Name of the workers' role");
  table.add(
      "--no-python",
      flags.no_python,
      "Accepted and ignored: weftrun starts any program");
  table.add(
      "--numa-binding",
      flags.numa_binding,
      "CPUs of each worker: node, socket, exclusive or core-complex. node and "
      "socket have no effect on a host with one NUMA node");
  table.add(
      "--virtual-local-rank",
      flags.virtual_local_rank,
      "Sets LOCAL_RANK to 0 for all workers and makes only its own device "
      "visible to each");
}

void add_host_flags(FlagTable& table, Flags& flags) {
  HostFlags& hosts = flags.hosts;
  table.add(
      "--nnodes",
      hosts.nnodes,
      "Number of hosts, each with one weftrun (default 1)");
  table.add(
      "--node-rank",
      hosts.node_rank,
      "Rank of this host for --rdzv-backend static (default 0)");
  table.add(
      "--master-addr",
      hosts.master_addr,
      "Address of rank 0, or of host 0's launcher (default: the loopback "
      "address)");
  table
      .add(
          "--master-port",
          hosts.master_port,
          "Port of --master-addr. 0 selects a free port; the default is 0 on "
          "one host and 29500 on several")
      ->check(CLI::Range(0, 65535));
  table.add(
      "--rdzv-endpoint",
      hosts.rdzv_endpoint,
      "host:port in one flag; with several hosts the address on which host 0 "
      "listens");
  table
      .add(
          "--rdzv-backend",
          hosts.rdzv_backend,
          "static (hosts are numbered by --node-rank) or c10d (in the order of "
          "arrival; port 29400)")
      ->check(CLI::IsMember({"static", "c10d"}));
  table.add(
      "--rdzv-id",
      flags.rdzv_id,
      "Id of the run, the same on all hosts (default none)");
  table.add(
      "--rdzv-conf",
      hosts.rdzv_conf,
      "join_timeout=600, keep_alive_interval=5, keep_alive_max_attempt=3, "
      "is_host=");
  table.add(
      "--local-addr",
      hosts.local_addr,
      "Address of this host for other hosts (default: the address of the route "
      "to host 0)");
  table.add(
      "--token-file",
      hosts.token_file,
      "File with the secret of all hosts of a run, mode 0600");
  table
      .add(
          "--token-fd",
          hosts.token_fd,
          "File descriptor of the secret, inherited from the parent process")
      ->check(CLI::Range(-1, 1048576));
  table.add(
      "--standalone",
      hosts.standalone,
      "Runs on one host with a generated run id");
}

void add_output_flags(FlagTable& table, Flags& flags) {
  table.add(
      "--log-dir",
      flags.log_dir,
      "Logs go to <log-dir>/<run-id>_*/attempt_<n>/<local rank>/");
  table.add(
      "-r,--redirects",
      flags.redirects,
      "Writes output to files: 1 stdout, 2 stderr, 3 both, or 0:1,1:3 by local "
      "rank");
  table.add(
      "-t,--tee",
      flags.tee,
      "Writes output to files and, with a prefix, to the console");
  table.add(
      "--log-line-prefix-template",
      flags.log_line_prefix_template,
      "Prefix of --tee: ${role_name}, ${rank}, ${local_rank}, ${hostname}");
  table
      .add(
          "--log-level",
          flags.log_level,
          "Least level of the log lines of weftrun and of the workers: debug, "
          "info (default), warning or error (also WEFT_LOG_LEVEL)")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  table.add(
      "--local-ranks-filter",
      flags.local_ranks_filter,
      "Local ranks whose output reaches the console, e.g. 0,1");
  table.add(
      "--duplicate-stdout-filters",
      flags.duplicate_stdout_filters,
      "Also writes lines of --tee that contain one of these strings (a,b; ,, "
      "is a comma) to attempt_<n>/filtered_stdout.log");
  table.add(
      "--duplicate-stderr-filters",
      flags.duplicate_stderr_filters,
      "Like --duplicate-stdout-filters for standard error, to "
      "filtered_stderr.log");
  table.add(
      "--signals-to-handle",
      flags.signals_to_handle,
      "Signals that are forwarded to the workers and end the run. SIGUSR1 and "
      "SIGUSR2, if not listed, are forwarded without ending it");
  table
      .add(
          "--shutdown-timeout",
          flags.shutdown_timeout,
          "Seconds between such a signal and SIGKILL (also "
          "TORCH_ELASTIC_SHUTDOWN_TIMEOUT)")
      ->check(CLI::Range(0.0, 1e6));
}

std::unique_ptr<CLI::App> make_app(Flags& flags) {
  auto app = std::make_unique<CLI::App>(
      "Starts the workers of a run, one per rank, like torchrun. On several "
      "hosts one weftrun\nruns on each. Exits with the exit code of the first "
      "worker that fails.");
  app->formatter(std::make_shared<HelpFormatter>());
  app->get_formatter()->column_width(32);
  app->set_version_flag("--version", "weftrun " WEFT_VERSION);
  app->footer(
      "Flags may use underscores. The environment variable PET_<FLAG> sets a "
      "flag that is not given.\nThe first worker reads standard input, the "
      "others /dev/null. Rank 0 inherits a socket bound\nto MASTER_PORT as "
      "file descriptor WEFT_MASTER_FD. At the end weftrun kills the "
      "remaining\nprocesses of the workers' process groups.");
  FlagTable table(*app);
  add_process_flags(table, flags);
  add_host_flags(table, flags);
  add_output_flags(table, flags);
  return app;
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

/// The arguments up to the program, each as --name or --name=value with dashes,
/// and the program's command. CLI11 cannot distinguish an unknown flag from the
/// program's flags.
struct SplitArguments {
  std::vector<std::string> flags;
  std::vector<std::string> command;
};

SplitArguments split(
    const CLI::App& app,
    const std::vector<std::string>& arguments) {
  SplitArguments split;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      ++i;
      break;
    }
    if (argument.size() < 2 || argument.front() != '-') {
      break;
    }
    const bool is_long = argument.starts_with("--");
    const size_t equals = argument.find('=');
    size_t name_end = std::min(equals, argument.size());
    std::string name = argument.substr(0, name_end);
    std::ranges::replace(name, '_', '-');
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr && !is_long) { // a value without a blank: -r3
      name_end = 2;
      option = app.get_option_no_throw(name.substr(0, 2));
    }
    if (option == nullptr) {
      throw LaunchError(unknown_flag_message(name, long_names(app)));
    }
    name = "--" + option->get_lnames().front();
    std::optional<std::string> value;
    if (name_end < argument.size()) {
      value = argument.substr(name_end + (name_end == equals ? 1 : 0));
    } else if (option->get_items_expected_max() > 0) {
      if (++i == arguments.size()) {
        throw LaunchError(fmt::format("{} needs a value.", name));
      }
      value = arguments[i];
    }
    // An empty value, e.g. of an unset shell variable, keeps the default.
    if (!value) {
      split.flags.push_back(name);
    } else if (!value->empty()) {
      split.flags.push_back(name + "=" + *value);
    }
  }
  split.command.assign(arguments.begin() + i, arguments.end());
  return split;
}

} // namespace

CommandLine read_command_line(int argc, const char* const* argv) {
  CommandLine line;
  const auto app = make_app(line.flags);
  SplitArguments arguments =
      split(*app, std::vector<std::string>(argv + 1, argv + argc));
  // PET_SHUTDOWN_TIMEOUT overrides torchrun's own variable, and a flag
  // overrides both.
  const char* timeout = std::getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  const char* pet_timeout = std::getenv("PET_SHUTDOWN_TIMEOUT");
  if (timeout != nullptr && *timeout != '\0' &&
      (pet_timeout == nullptr || *pet_timeout == '\0')) {
    arguments.flags.insert(
        arguments.flags.begin(), std::string("--shutdown-timeout=") + timeout);
  }
  try {
    std::ranges::reverse(arguments.flags); // CLI11 requires the reverse order.
    app->parse(arguments.flags);
  } catch (const CLI::CallForHelp&) {
    line.text = app->help();
  } catch (const CLI::CallForVersion& version) {
    line.text = std::string(version.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    throw LaunchError(error.what());
  }
  line.command = std::move(arguments.command);
  return line;
}

namespace {

/// The flags of torchrun that do not apply to a launcher of programs.
constexpr std::array<std::string_view, 8> kNotApplicable{
    "-m",
    "--module",
    "--run-path",
    "--start-method",
    "--event-log-handler",
    "--logs-specs",
    "--print-completion",
    "--use-env"};

} // namespace

std::string nearest_flag(
    std::string_view flag,
    const std::vector<std::string>& valid) {
  // MPI's launchers use these names.
  if (flag == "-n" || flag == "-np" || flag == "--np") {
    return "--nproc-per-node";
  }
  const auto cost = [&](const std::string& name) {
    return name.starts_with(flag) ? 0 : base::edit_distance(flag, name);
  };
  const auto best = std::ranges::min_element(valid, {}, cost);
  return best == valid.end() ? "--help" : *best;
}

std::string unknown_flag_message(
    std::string_view flag,
    const std::vector<std::string>& valid) {
  if (std::ranges::find(kNotApplicable, flag) != kNotApplicable.end()) {
    return fmt::format(
        "{} does not apply: weftrun starts programs, not Python functions or "
        "modules. Leave it out (for Python: weftrun -- python3 ...).",
        flag);
  }
  return fmt::format(
      "unknown flag {}. Did you mean {}? Flags of the program come after its "
      "name; weftrun --help lists weftrun's.",
      flag,
      nearest_flag(flag, valid));
}

} // namespace weft::launcher
