#include "launcher/output/sink.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace weft::launcher {
namespace {

constexpr size_t kFullBytes = 1 << 20;

bool is_regular_file(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

} // namespace

// A pipe that poll() reports as writable takes PIPE_BUF bytes without blocking.
// A file takes any number.
Sink::Sink(int fd)
    : fd_(fd), piece_(is_regular_file(fd) ? SIZE_MAX : PIPE_BUF) {}

void Sink::push(std::string_view bytes) {
  if (broken_) {
    return;
  }
  if (!bytes.empty()) {
    mid_line_ = bytes.back() != '\n';
  }
  kept_.append(bytes);
  write_some();
}

void Sink::write_some() {
  while (!broken_ && written_ < kept_.size() && writable()) {
    const size_t size = std::min(piece_, kept_.size() - written_);
    const ssize_t count = write(fd_, kept_.data() + written_, size);
    if (count >= 0) {
      written_ += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      broken_ = true;
    }
  }
  if (broken_ || written_ == kept_.size()) {
    kept_.clear();
    written_ = 0;
  } else if (written_ >= kFullBytes) {
    kept_.erase(0, written_);
    written_ = 0;
  }
}

bool Sink::full() const {
  return kept_.size() - written_ >= kFullBytes;
}

bool Sink::writable() const {
  pollfd state{.fd = fd_, .events = POLLOUT, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

void LineBuffer::append(std::string_view bytes, const OnLine& on_line) {
  for (size_t end; (end = bytes.find('\n')) != std::string_view::npos;
       bytes.remove_prefix(end + 1)) {
    const auto rest = bytes.substr(0, end + 1);
    if (unfinished_.empty()) {
      on_line(rest);
    } else {
      on_line(unfinished_.append(rest));
      unfinished_.clear();
    }
  }
  unfinished_ += bytes;
  if (unfinished_.size() > max_bytes_) {
    finish(on_line);
  }
}

void LineBuffer::finish(const OnLine& on_line) {
  if (!unfinished_.empty()) {
    on_line(unfinished_ + "\n");
    unfinished_.clear();
  }
}

} // namespace weft::launcher
