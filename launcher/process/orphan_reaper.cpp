#include "launcher/process/orphan_reaper.h"

#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

/// Reads process groups until the writer is gone, and returns those that are
/// still registered. A negative number unregisters a group.
std::vector<pid_t> read_groups(int fd) {
  std::vector<pid_t> groups;
  for (;;) {
    // A pipe never splits a message as small as this.
    pid_t message = 0;
    const ssize_t size = read(fd, &message, sizeof(message));
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size != sizeof(message)) {
      return groups;
    }
    if (message < 0) {
      std::erase(groups, -message);
    } else {
      groups.push_back(message);
    }
  }
}

[[noreturn]] void reap_orphans(int fd, const std::filesystem::path& temporary) {
  // Detaches from the run, so that this process holds no terminal, no pipe
  // whose end a reader waits for, and no working folder, and gets no signal
  // meant for weftrun.
  setsid();
  (void)!chdir("/");
  prctl(PR_SET_NAME, "weft-guard");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  dup2(fd, 0);
  if (close_range(1, ~0U, 0) != 0) {
    const long limit = sysconf(_SC_OPEN_MAX);
    for (int other = 1; other < limit; ++other) {
      close(other);
    }
  }
  for (const pid_t group : read_groups(0)) {
    kill(-group, SIGKILL);
  }
  if (!temporary.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
  }
  _exit(0);
}

} // namespace

OrphanReaper::OrphanReaper(const std::filesystem::path& temporary) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw_errno("pipe");
  }
  const base::UniqueFd read_end(ends[0]);
  pipe_ = base::UniqueFd(ends[1]);
  pid_ = fork();
  if (pid_ < 0) {
    throw_errno("fork");
  }
  if (pid_ == 0) {
    reap_orphans(read_end.get(), temporary);
  }
}

OrphanReaper::~OrphanReaper() {
  pipe_.reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void OrphanReaper::register_self() const {
  send(getpgrp());
}

void OrphanReaper::forget(pid_t group) const {
  send(-group);
}

void OrphanReaper::send(pid_t message) const {
  while (write(pipe_.get(), &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

} // namespace weft::launcher
