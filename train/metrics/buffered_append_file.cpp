#include "train/metrics/buffered_append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "mesh/error/error.h"
#include "mesh/error/resource_limits.h"

namespace weft::train {
namespace {

std::string reason(int error) {
  return std::strerror(error) + mesh::limit_behind(error);
}

} // namespace

BufferedAppendFile::BufferedAppendFile(std::string path)
    : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "output_dir: cannot write \"{}\": {}", path_, reason(errno)));
  }
}

BufferedAppendFile::~BufferedAppendFile() {
  write_waiting();
  ::close(fd_);
}

std::string BufferedAppendFile::append(std::string_view bytes) {
  const bool was_full = error_ != 0;
  waiting_.append(bytes);
  const bool is_full = !write_waiting();
  if (is_full && !was_full) {
    return fmt::format(
        "cannot write \"{}\": {}. Training continues; the data stays buffered "
        "in memory",
        path_,
        reason(error_));
  }
  return was_full && !is_full
             ? fmt::format(
                   "\"{}\" can be written again; no data was lost", path_)
             : "";
}

std::string BufferedAppendFile::finish() {
  return write_waiting() ? ""
                         : fmt::format(
                               "\"{}\": the last {} bytes could not be written "
                               "and are lost: {}",
                               path_,
                               waiting_.size(),
                               reason(error_));
}

// Writes the waiting bytes. After an error inside a line, the next call
// continues behind the bytes that were written.
bool BufferedAppendFile::write_waiting() {
  size_t done = 0;
  error_ = 0;
  while (done < waiting_.size() && error_ == 0) {
    const auto wrote =
        ::write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (wrote >= 0) {
      done += static_cast<size_t>(wrote);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  waiting_.erase(0, done);
  return error_ == 0;
}

} // namespace weft::train
