#include "launcher/launch.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include <sys/epoll.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/environment.h"
#include "launcher/output/log_dir.h"
#include "launcher/output/output.h"
#include "launcher/process/error.h"
#include "launcher/process/master_socket.h"
#include "launcher/process/oom_monitor.h"
#include "launcher/process/orphan_reaper.h"
#include "launcher/process/signals.h"
#include "launcher/process/worker.h"
#include "launcher/program.h"
#include "launcher/rendezvous/make_rendezvous.h"
#include "launcher/report/failure_diagnosis.h"
#include "launcher/report/report.h"
#include "launcher/supervisor.h"

namespace weft::launcher {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// The ERROR line at the end of a report, and what stands before it.
std::pair<std::string, std::string> split_last_line(std::string text) {
  if (text.empty()) {
    return {};
  }
  const size_t end = text.rfind('\n', text.size() - 2);
  const size_t start = end == std::string::npos ? 0 : end + 1;
  std::string line = text.substr(start, text.size() - 1 - start);
  text.resize(start);
  return {text, line};
}

HostResult host_end(const Outcome& outcome, const std::string& line) {
  HostResult end;
  end.code = exit_code(outcome);
  end.signal = outcome.requested_signal;
  end.line = line;
  if (const auto cause = root_cause(outcome)) {
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

/// A run from its first start to its end.
class Launch {
 public:
  Launch(const Options& options, const std::string& start_time)
      : options_(options),
        start_time_(start_time),
        program_(find_program(options.command.front())),
        signals_(options.signals),
        logs_(options),
        guard_(logs_.temporary()),
        output_(options, logs_),
        rendezvous_(make_rendezvous(
            options,
            host_name(),
            [this](std::string_view line) { output_.log_line(line); })),
        wake_fd_(make_wake_fd()) {}

  int run();

 private:
  base::UniqueFd make_wake_fd() const;
  /// Waits until `done` (may be empty) or for `limit`, and returns the signal
  /// that came instead, or 0.
  int wait(
      const std::function<bool()>& done,
      std::optional<milliseconds> limit = std::nullopt);
  std::vector<Worker> spawn_all(
      const WorkerContext& common,
      MasterSocket* store);
  Outcome supervise(const std::vector<Worker>& workers);
  void handle_signal(Supervisor& supervisor, int signal);
  /// Returns the host's part of the verdict, its report said.
  HostResult attempt(RankAssignment rank_assignment);
  RunResult await_verdict();
  int finish(const RunResult& run_result);
  int finish_by_signal(int signal);
  void flush();

  const Options& options_;
  const std::string& start_time_;
  const std::string program_;
  SignalQueue signals_;
  LogDir logs_;
  OrphanReaper guard_;
  Output output_;
  const std::unique_ptr<Rendezvous> rendezvous_;
  const base::UniqueFd wake_fd_;
};

base::UniqueFd Launch::make_wake_fd() const {
  base::UniqueFd fd(epoll_create1(EPOLL_CLOEXEC));
  for (const int source : {signals_.fd(), rendezvous_->fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (source >= 0 &&
        epoll_ctl(fd.get(), EPOLL_CTL_ADD, source, &event) != 0) {
      throw_errno("epoll_ctl");
    }
  }
  return fd;
}

int Launch::wait(
    const std::function<bool()>& done,
    std::optional<milliseconds> limit) {
  const auto deadline = Clock::now() + limit.value_or(milliseconds(0));
  for (;;) {
    if (done && done()) {
      return 0;
    }
    const auto left =
        limit ? std::chrono::ceil<milliseconds>(deadline - Clock::now())
              : milliseconds(-1);
    if (limit && left <= milliseconds(0)) {
      return 0;
    }
    if (output_.wait(wake_fd_.get(), left)) {
      for (const int signal : signals_.take()) {
        if (signals_.is_termination_request(signal)) {
          return signal;
        }
        if (signals_.is_forwarded_only(signal)) {
          output_.log_line(fmt::format(
              "weftrun: {} received, but no worker runs\n",
              signal_name(signal)));
        }
      }
      rendezvous_->dispatch();
    }
  }
}

std::vector<Worker> Launch::spawn_all(
    const WorkerContext& common,
    MasterSocket* store) {
  const auto base = current_environment();
  ExecReport exec_report;
  const auto cpus = numa_cpus(
      options_.numa_binding, options_.worker_count, current_numa_host());
  std::vector<Worker> workers;
  for (int local_rank = 0; local_rank < options_.worker_count; ++local_rank) {
    const WorkerStreams streams = output_.open(local_rank);
    WorkerContext context = common;
    context.error_file = logs_.file(local_rank, "error.json");
    context.stderr_is_terminal = output_.stderr_is_terminal(local_rank);
    workers.push_back(spawn(
        {.rank = context.rank_assignment.first_rank + local_rank,
         .program = program_,
         .arguments = options_.command,
         .environment = worker_environment(base, options_, context, local_rank),
         .standard_input = streams.input.get(),
         .standard_output = streams.output.get(),
         .standard_error = streams.error.get(),
         .inherited_fd = local_rank == 0 ? context.master_fd : -1,
         .cpus = cpus.empty() ? std::set<int>() : cpus[local_rank]},
        signals_,
        exec_report,
        guard_));
  }
  exec_report.wait(options_.command.front());
  if (store != nullptr) {
    store->close();
  }
  return workers;
}

Outcome Launch::supervise(const std::vector<Worker>& workers) {
  Supervisor supervisor(workers, options_.shutdown_timeout);
  supervisor.collect_exits();
  while (!supervisor.is_over()) {
    if (output_.wait(wake_fd_.get(), supervisor.time_left())) {
      for (const int signal : signals_.take()) {
        handle_signal(supervisor, signal);
      }
      rendezvous_->dispatch();
    }
    if (const auto request = rendezvous_->take_stop_request()) {
      supervisor.stop(*request);
    }
    if (supervisor.advance()) {
      rendezvous_->report_failure();
    }
  }
  auto outcome = supervisor.finish();
  output_.drain();
  return outcome;
}

void Launch::handle_signal(Supervisor& supervisor, int signal) {
  if (signal == SIGCHLD) {
    supervisor.collect_exits();
  } else if (signals_.is_forwarded_only(signal)) {
    output_.log_line(fmt::format(
        "weftrun: {} received and passed on to the workers\n",
        signal_name(signal)));
    supervisor.pass_on(signal);
  } else if (supervisor.request_stop(signal)) {
    output_.log_line(fmt::format(
        "weftrun: {} received and forwarded; workers have {} s to end\n",
        signal_name(signal),
        options_.shutdown_timeout.count() / 1000.0));
    rendezvous_->report_signal(signal);
  } else if (signal != SIGQUIT) {
    output_.log_line(fmt::format(
        "weftrun: {} received; already ending, SIGQUIT ends at once\n",
        signal_name(signal)));
  }
}

HostResult Launch::attempt(RankAssignment rank_assignment) {
  logs_.begin_attempt(rank_assignment.restart_count);
  output_.begin_attempt(rank_assignment.first_rank);
  const bool kept = logs_.temporary().empty();
  if (kept && options_.log_dir.empty()) {
    output_.log_line(fmt::format(
        "weftrun: no --log-dir: the workers' files are in {}\n",
        logs_.attempt().string()));
  }
  WorkerContext context;
  std::optional<MasterSocket> store;
  if (rank_assignment.master_port == 0) {
    const bool alone = rank_assignment.node_count == 1;
    rank_assignment.master_addr = alone ? options_.hosts.address : "127.0.0.1";
    store.emplace(rank_assignment.master_addr, alone ? options_.hosts.port : 0);
    rank_assignment.master_port = store->port();
    context.master_fd = store->fd();
    rendezvous_->serve_store(store->port());
  }
  context.rank_assignment = rank_assignment;
  context.start_time = start_time_;
  const auto workers = spawn_all(context, store ? &*store : nullptr);
  OomMonitor memory(pids(workers));
  Outcome outcome = supervise(workers);
  guard_.forget();
  const auto local = [&](int rank) {
    return rank - rank_assignment.first_rank;
  };
  const ReportSources sources{
      .host = host_name(),
      .worker_count = options_.worker_count,
      .tail = [&](int rank) { return output_.tail(local(rank)); },
      .error =
          [&](int rank) {
            return read_error_file(logs_.file(local(rank), "error.json"));
          },
      .logs = kept ? logs_.attempt() : std::filesystem::path()};
  diagnose_failures(outcome, sources, memory);
  auto [text, line] = split_last_line(report(outcome, sources));
  output_.log_line(text);
  return host_end(outcome, line);
}

RunResult Launch::await_verdict() {
  std::optional<RunResult> run_result;
  const auto decided = [&] {
    run_result = rendezvous_->take_result();
    return run_result.has_value();
  };
  int first_signal = 0;
  while (const int signal = wait(decided)) {
    if (first_signal != 0) { // the one that asks twice does not wait for others
      return {
          .code = 128 + signal,
          .line = fmt::format(
              "ERROR {} rank=0 op=launch stopped by signal {} ({}) while "
              "other hosts still ran",
              128 + signal,
              signal,
              signal_name(signal)),
          .note = "",
          .restart_after = std::nullopt};
    }
    first_signal = signal;
    rendezvous_->report_signal(signal);
  }
  return *run_result;
}

int Launch::finish_by_signal(int signal) {
  rendezvous_->report_signal(signal);
  return finish(
      {.code = 128 + signal,
       .line = fmt::format(
           "ERROR {} rank=0 op=launch stopped by signal {} ({}), no worker "
           "running",
           128 + signal,
           signal,
           signal_name(signal)),
       .note = "",
       .restart_after = std::nullopt});
}

int Launch::finish(const RunResult& run_result) {
  output_.log_line(run_result.note);
  if (!run_result.line.empty()) {
    output_.log_line(run_result.line + "\n");
  }
  flush();
  return run_result.code;
}

/// A slow reader gets all of it, unless a signal says that it is enough.
void Launch::flush() {
  while (output_.pending()) {
    if (output_.wait(signals_.fd(), milliseconds(-1)) &&
        std::ranges::any_of(signals_.take(), [&](int signal) {
          return signals_.is_termination_request(signal);
        })) {
      break;
    }
  }
}

int Launch::run() {
  for (;;) {
    rendezvous_->ready();
    std::optional<RankAssignment> rank_assignment;
    std::optional<RunResult> over;
    const int signal = wait([&] {
      rank_assignment = rendezvous_->take_rank_assignment();
      over = rendezvous_->take_result();
      return rank_assignment || over;
    });
    if (signal != 0) {
      return finish_by_signal(signal);
    }
    if (over) {
      return finish(*over);
    }
    rendezvous_->end(attempt(*rank_assignment));
    const RunResult run_result = await_verdict();
    if (!run_result.restart_after) {
      return finish(run_result);
    }
    output_.log_line(run_result.line + "\n");
    output_.log_line(run_result.note);
    if (const int stop = wait(nullptr, run_result.restart_after)) {
      return finish_by_signal(stop);
    }
  }
}

} // namespace

int launch(const Options& options, const std::string& start_time) {
  return Launch(options, start_time).run();
}

} // namespace weft::launcher
