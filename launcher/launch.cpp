#include "launcher/launch.h"

#include <algorithm>
#include <chrono>

#include <unistd.h>

#include "launcher/environment.h"
#include "launcher/guard.h"
#include "launcher/log_dir.h"
#include "launcher/master_socket.h"
#include "launcher/output.h"
#include "launcher/program.h"
#include "launcher/report.h"
#include "launcher/signals.h"
#include "launcher/supervisor.h"
#include "launcher/worker.h"

namespace weft::launcher {
namespace {

struct Surroundings {
  const Options& options;
  const std::string& start_time;
  const LogDir& logs;
  const SignalQueue& signals;
  Guard& guard;
  Output& output;
};

std::vector<Worker> spawn_all(
    const std::string& program,
    MasterSocket& master,
    Surroundings& around) {
  const Options& options = around.options;
  const auto base = own_environment();
  ExecReport exec_report;
  std::vector<Worker> workers;
  for (int rank = 0; rank < options.worker_count; ++rank) {
    const WorkerStreams streams = around.output.open(rank);
    const LaunchFacts facts{
        .master_port = master.port(),
        .master_fd = master.fd(),
        .start_time = around.start_time,
        .error_file = around.logs.file(rank, "error.json"),
        .stderr_is_terminal = around.output.stderr_is_terminal(rank)};
    workers.push_back(spawn(
        {.rank = rank,
         .program = program,
         .arguments = options.command,
         .environment = worker_environment(base, options, facts, rank),
         .standard_input = streams.input.get(),
         .standard_output = streams.output.get(),
         .standard_error = streams.error.get(),
         .inherited_fd = rank == 0 ? master.fd() : -1},
        around.signals,
        exec_report));
    around.guard.watch(workers.back().pid);
  }
  exec_report.wait(options.command.front());
  master.close();
  return workers;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

} // namespace

int launch(const Options& options, const std::string& start_time) {
  const std::string program = find_program(options.command.front());
  MasterSocket master(options.master_addr, options.master_port);
  SignalQueue signals(options.signals);
  const LogDir logs(options);
  Guard guard(logs.temporary());
  Output output(options, logs);
  Surroundings around{options, start_time, logs, signals, guard, output};
  const auto workers = spawn_all(program, master, around);
  Supervisor supervisor(workers, output, signals, options.shutdown_timeout);
  const Outcome outcome = supervisor.run();
  guard.dismiss();
  const bool kept = logs.temporary().empty();
  output.say(report(
      outcome,
      {.host = host_name(),
       .worker_count = options.worker_count,
       .tail = [&](int rank) { return output.tail(rank); },
       .error_file = [&](int rank) { return logs.file(rank, "error.json"); },
       .logs = kept ? logs.attempt() : std::filesystem::path()}));
  // A slow reader gets all of it, unless a signal says that it is enough.
  while (output.pending()) {
    if (output.wait(signals.fd(), std::chrono::milliseconds(-1)) &&
        std::ranges::any_of(
            signals.take(), [](int signal) { return signal != SIGCHLD; })) {
      break;
    }
  }
  return exit_code(outcome);
}

} // namespace weft::launcher
