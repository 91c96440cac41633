#include "launcher/attempt.h"
#include "launcher/process/outcome.h"

#include <chrono>
#include <set>
#include <utility>

#include <signal.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/process/error.h"
#include "launcher/report/failure_diagnosis.h"
#include "launcher/report/report.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;

HostResult host_end(
    const Outcome& outcome,
    const std::optional<WorkerExit>& cause,
    const std::string& line) {
  HostResult end;
  end.code = exit_code(outcome, cause);
  end.signal = outcome.requested_signal;
  end.line = line;
  if (cause) {
    end.lost_peer = is_peer_loss(*cause);
    end.age = std::chrono::duration_cast<milliseconds>(
        std::chrono::system_clock::now() - failure_time(*cause));
  }
  return end;
}

std::vector<pid_t> pids(const std::vector<Worker>& workers) {
  std::vector<pid_t> result;
  for (const auto& worker : workers) {
    result.push_back(worker.pid);
  }
  return result;
}

} // namespace

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

base::UniqueFd make_wake_fd(std::initializer_list<int> sources) {
  base::UniqueFd fd(epoll_create1(EPOLL_CLOEXEC));
  for (const int source : sources) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (source >= 0 &&
        epoll_ctl(fd.get(), EPOLL_CTL_ADD, source, &event) != 0) {
      throw_errno("epoll_ctl");
    }
  }
  return fd;
}

void log_passed_on(const LauncherHost& host, int signal) {
  host.output.log().info(fmt::format(
      "{} received and passed on to the workers", signal_name(signal)));
}

void log_stop(const LauncherHost& host, int signal, bool is_forwarded) {
  if (is_forwarded) {
    host.output.log().info(fmt::format(
        "{} received and forwarded; workers have {} s to end",
        signal_name(signal),
        host.options.shutdown_timeout.count() / 1000.0));
  } else if (signal != SIGQUIT) {
    host.output.log().info(fmt::format(
        "{} received; already ending, SIGQUIT ends at once",
        signal_name(signal)));
  }
}

RunResult stopped_without_worker(int signal) {
  return {
      .code = 128 + signal,
      .line = failure_line(
          128 + signal,
          fmt::format(
              "stopped by signal {} ({}), no worker running",
              signal,
              signal_name(signal))),
      .note = "",
      .restart_after = std::nullopt};
}

Attempt::Attempt(
    const LauncherHost& host,
    WorkerContext context,
    const std::string& address,
    int port,
    const std::function<base::UniqueFd(int local_rank)>& open_link)
    : host_(host), context_(std::move(context)) {
  auto& assignment = context_.rank_assignment;
  host_.logs.begin_attempt(assignment.restart_count, context_.workers);
  host_.output.begin_attempt(assignment.first_rank, context_.workers);
  if (host_.logs.temporary().empty() && host_.options.log_dir.empty()) {
    host_.output.log().info(fmt::format(
        "no --log-dir: the workers' files are in {}",
        host_.logs.attempt(context_.workers.first).string()));
  }
  if (assignment.master_port == 0) {
    assignment.master_addr = address;
    store_.emplace(address, port);
    assignment.master_port = store_->port();
    context_.master_fd = store_->fd();
  }
  context_.start_time = host_.start_time;
  try {
    spawn_all(open_link);
  } catch (...) {
    for (const auto& worker : workers_) {
      kill(-worker.pid, SIGKILL);
      waitpid(worker.pid, nullptr, 0);
      host_.guard.forget(worker.pid);
    }
    throw;
  }
  supervisor_.emplace(workers_, host_.options.shutdown_timeout);
  memory_.emplace(pids(workers_));
}

void Attempt::spawn_all(
    const std::function<base::UniqueFd(int local_rank)>& open_link) {
  std::vector<base::UniqueFd> links;
  const auto& options = host_.options;
  const auto base = current_environment();
  ExecReport exec_report;
  const auto cpus = numa_cpus(
      options.numa_binding, options.worker_count, current_numa_host());
  for (int local_rank = context_.workers.first;
       local_rank < context_.workers.end();
       ++local_rank) {
    const WorkerStreams streams = host_.output.open(local_rank);
    WorkerContext context = context_;
    context.error_file = host_.logs.file(local_rank, "error.json");
    context.stderr_is_terminal = host_.output.stderr_is_terminal(local_rank);
    std::vector<int> inherited;
    if (context.master_fd >= 0 && local_rank == context_.workers.first) {
      inherited.push_back(context.master_fd);
    }
    if (open_link) {
      links.push_back(open_link(local_rank));
      context.lighthouse_fd = links.back().get();
      inherited.push_back(context.lighthouse_fd);
    }
    workers_.push_back(spawn(
        {.rank = context.rank_assignment.first_rank + local_rank,
         .program = host_.program,
         .arguments = options.command,
         .environment = worker_environment(base, options, context, local_rank),
         .standard_input = streams.input.get(),
         .standard_output = streams.output.get(),
         .standard_error = streams.error.get(),
         .inherited_fds = inherited,
         .cpus = cpus.empty() ? std::set<int>() : cpus[local_rank]},
        host_.signals,
        exec_report,
        host_.guard));
  }
  exec_report.wait(options.command.front());
  if (store_) {
    store_->close();
  }
}

HostResult Attempt::finish() {
  Outcome outcome = supervisor_->finish();
  host_.output.drain(context_.workers);
  for (const auto& worker : workers_) {
    host_.guard.forget(worker.pid);
  }
  const auto local = [&](int rank) {
    return rank - context_.rank_assignment.first_rank;
  };
  const bool kept = host_.logs.temporary().empty();
  const ReportSources sources{
      .host = host_name(),
      .worker_count = context_.workers.count,
      .tail = [&](int rank) { return host_.output.tail(local(rank)); },
      .logs = kept ? host_.logs.attempt(context_.workers.first)
                   : std::filesystem::path()};
  for (auto& exit : outcome.exits) {
    if (exit.code != 0) {
      exit.error =
          read_error_file(host_.logs.file(local(exit.rank), "error.json"));
    }
  }
  diagnose_failures(outcome, sources, *memory_);
  const auto cause = root_cause(outcome);
  const auto [text, line] = report(outcome, cause, sources);
  host_.output.log().error(text);
  return host_end(outcome, cause, line);
}

} // namespace weft::launcher
