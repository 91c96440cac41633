#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "data/data_error.h"

namespace weft::data {
namespace {

int64_t modified_ns(const struct stat& status) {
  return status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
}

} // namespace

MappedFile::MappedFile(const std::string& path) {
  file_.path = path;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0) {
    refuse_data(path, 0, std::strerror(errno));
  }
  file_.size_bytes = status.st_size;
  file_.modified_ns = modified_ns(status);
  size_ = static_cast<size_t>(status.st_size);
  void* map = MAP_FAILED;
  if (S_ISREG(status.st_mode) && size_ > 0) {
    map = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  }
  const int failure = errno;
  ::close(fd);
  if (!S_ISREG(status.st_mode)) {
    refuse_data(path, 0, "is not a regular file");
  }
  if (size_ > 0 && map == MAP_FAILED) {
    refuse_data(path, 0, std::strerror(failure));
  }
  data_ = size_ > 0 ? static_cast<const unsigned char*>(map) : nullptr;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<unsigned char*>(data_), size_);
  }
}

void MappedFile::check_unchanged(int64_t offset) const {
  struct stat status {};
  if (::stat(file_.path.c_str(), &status) != 0) {
    refuse_data(file_.path, offset, std::strerror(errno));
  }
  if (status.st_size != file_.size_bytes ||
      modified_ns(status) != file_.modified_ns) {
    refuse_data(
        file_.path,
        offset,
        fmt::format(
            "the file changed after it was opened: it had {} bytes then and "
            "has {} now",
            file_.size_bytes,
            status.st_size));
  }
}

} // namespace weft::data
