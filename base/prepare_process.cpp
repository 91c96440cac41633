#include "base/prepare_process.h"

#include <cerrno>
#include <climits>
#include <csignal>
#include <initializer_list>

#include <fcntl.h>
#include <unistd.h>

namespace weft::base {
namespace {

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) {
      continue;
    }
    // The lowest that is free, which is this one.
    const int opened = open("/dev/null", O_RDWR);
    if (opened >= 0 && opened != fd) {
      close(opened);
    }
  }
}

void report_file_size_limit_as_error() {
  struct sigaction action {};
  if (sigaction(SIGXFSZ, nullptr, &action) == 0 &&
      action.sa_handler == SIG_DFL) {
    std::signal(SIGXFSZ, SIG_IGN);
  }
}

} // namespace

bool is_working_directory_removed() {
  char path[PATH_MAX];
  return getcwd(path, sizeof(path)) == nullptr && errno == ENOENT;
}

void prepare_process() {
  open_standard_streams();
  report_file_size_limit_as_error();
}

} // namespace weft::base
