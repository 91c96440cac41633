#include "launcher/process/worker.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/process/error.h"
#include "launcher/process/numa_binding.h"

namespace weft::launcher {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& string : strings) {
    result.push_back(const_cast<char*>(string.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

/// Runs in the child between fork and exec. It must not allocate memory,
/// because the launcher may have threads.
[[noreturn]] void run_child(
    const WorkerSpec& spec,
    const std::vector<char*>& arguments,
    const std::vector<char*>& environment,
    const SignalQueue& signals,
    int report_fd,
    const OrphanReaper& guard,
    pid_t launcher) {
  setsid();
  guard.register_self();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) {
    // The launcher died before prctl() took effect.
    _exit(128 + SIGKILL);
  }
  // Descriptors 0 to 2 are open in the launcher, so these are above 2.
  const int streams[] = {
      spec.standard_input, spec.standard_output, spec.standard_error};
  for (int target = 0; target < 3; ++target) {
    if (streams[target] >= 0) {
      dup2(streams[target], target);
    }
  }
  if (!spec.cpus.empty()) {
    bind_to_cpus(spec.cpus);
  }
  for (const int fd : spec.inherited_fds) {
    fcntl(fd, F_SETFD, 0);
  }
  signals.restore();
  execve(spec.program.c_str(), arguments.data(), environment.data());
  const int error = errno;
  (void)!write(report_fd, &error, sizeof(error));
  _exit(2);
}

} // namespace

ExecReport::ExecReport() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw_errno("pipe");
  }
  read_end_ = base::UniqueFd(ends[0]);
  write_end_ = base::UniqueFd(ends[1]);
}

void ExecReport::wait(const std::string& program) {
  write_end_.reset();
  int error = 0;
  ssize_t size = 0;
  do {
    size = read(read_end_.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (size == sizeof(error)) {
    throw LaunchError(fmt::format(
        "program '{}' could not be started: {}.{}",
        program,
        std::strerror(error),
        error == ENOEXEC ? " A script needs a first line such as #!/bin/sh."
                         : ""));
  }
}

Worker spawn(
    const WorkerSpec& spec,
    const SignalQueue& signals,
    const ExecReport& report,
    const OrphanReaper& guard) {
  const auto arguments = pointers(spec.arguments);
  const auto environment = pointers(spec.environment);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    throw_errno(fmt::format("fork of worker {}", spec.rank));
  }
  if (pid == 0) {
    run_child(
        spec,
        arguments,
        environment,
        signals,
        report.write_end(),
        guard,
        launcher);
  }
  return {.rank = spec.rank, .pid = pid};
}

} // namespace weft::launcher
