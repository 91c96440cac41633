#include "tests/checkpoint/crash/short_writes.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace weft::test {
int64_t max_bytes_a_write = 0;
} // namespace weft::test

// In place of the C library's.
extern "C" ssize_t
pwritev(int fd, const struct iovec* parts, int count, off_t offset) {
  static std::atomic<int64_t> calls{0};
  const auto most = weft::test::max_bytes_a_write;
  if (most == 0 || count == 0) {
    return ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
  }
  const auto call = calls++;
  if (call % 3 == 2) {
    errno = EINTR;
    return -1;
  }
  const auto size =
      std::min<size_t>(parts[0].iov_len, static_cast<size_t>(1 + call % most));
  return ::pwrite(fd, parts[0].iov_base, size, offset);
}
