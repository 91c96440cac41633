#include "mesh/standard_streams.h"

#include <initializer_list>

#include <fcntl.h>
#include <unistd.h>

namespace weft::mesh {

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

} // namespace weft::mesh
