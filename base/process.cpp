#include "base/process.h"

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <iostream>

#include <fcntl.h>
#include <unistd.h>

#include "base/for_each_processor.h"

namespace weft::base {
namespace {

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) {
      continue;
    }
    // open() returns the lowest free descriptor, which is `fd`.
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

void end_process(int code) {
#ifdef WEFT_IS_SANITIZED
  std::exit(code);
#else
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}

} // namespace weft::base
