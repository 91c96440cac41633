#include "checkpoint/files/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/files/limits.h"
#include "checkpoint/files/text.h"
#include "mesh/error/resource_limits.h"

namespace weft::checkpoint {
namespace {

// std::system_error appends the text of the errno.
[[noreturn]] void throw_errno(
    const char* call,
    const std::filesystem::path& path,
    int error = errno) {
  throw std::system_error(
      error,
      std::generic_category(),
      fmt::format(
          "[checkpoint] {} {}{}",
          call,
          path.string(),
          mesh::limit_behind(error)));
}

// Opens a file inside the folder without following links. Kernels before 5.6
// and some sandboxes have no openat2. For a name without separators, openat
// with O_NOFOLLOW does the same.
int open_beneath(int folder, const std::string& name, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags);
  how.mode = mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const auto fd = static_cast<int>(
      ::syscall(SYS_openat2, folder, name.c_str(), &how, sizeof(how)));
  if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) {
    return fd;
  }
  return ::openat(folder, name.c_str(), flags | O_NOFOLLOW, mode);
}

struct stat status_of(const File& file) {
  struct stat status {};
  if (::fstat(file.fd(), &status) != 0) {
    throw_errno("fstat", file.path());
  }
  return status;
}

void check_name(const Folder& folder, const std::string& name) {
  if (!is_plain_file_name(name)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "[checkpoint] {}: got file name {}, expected a plain name without a "
        "folder",
        folder.path().string(),
        in_quotes(name)));
  }
}

} // namespace

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

int64_t File::size() const {
  return status_of(*this).st_size;
}

int64_t File::read_at(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const auto got = ::pread(
        fd_,
        out.data() + done,
        out.size() - done,
        offset + static_cast<off_t>(done));
    if (got < 0 && errno != EINTR) {
      throw_errno("read", path_);
    }
    if (got == 0) {
      break;
    }
    done += static_cast<size_t>(std::max<ssize_t>(got, 0));
  }
  return static_cast<int64_t>(done);
}

void File::write_at(
    int64_t offset,
    std::span<const std::span<const std::byte>> parts) const {
  constexpr size_t kMaxParts = 1024; // the kernel's IOV_MAX
  std::vector<iovec> left;
  left.reserve(parts.size());
  for (const auto& part : parts) {
    if (!part.empty()) {
      left.push_back({const_cast<std::byte*>(part.data()), part.size()});
    }
  }
  size_t first = 0;
  while (first < left.size()) {
    const auto count = std::min(left.size() - first, kMaxParts);
    const auto wrote =
        ::pwritev(fd_, &left[first], static_cast<int>(count), offset);
    if (wrote < 0 && errno != EINTR) {
      throw_errno("write", path_);
    }
    // Without this check, a file system that writes nothing and reports no
    // error would make the loop endless.
    if (wrote == 0) {
      throw_errno("write", path_, EIO);
    }
    auto taken = static_cast<size_t>(std::max<ssize_t>(wrote, 0));
    offset += static_cast<int64_t>(taken);
    while (first < left.size() && taken >= left[first].iov_len) {
      taken -= left[first].iov_len;
      ++first;
    }
    if (taken > 0) {
      left[first].iov_base = static_cast<char*>(left[first].iov_base) + taken;
      left[first].iov_len -= taken;
    }
  }
}

void File::reserve(int64_t bytes) const {
  while (bytes > 0 && ::fallocate(fd_, 0, 0, bytes) != 0) {
    const int error = errno;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO) {
      const auto call = fmt::format("reserve {} bytes for", bytes);
      throw_errno(call.c_str(), path_, error);
    }
    if (error != EINTR) {
      return; // Not supported. A write will report a full disk.
    }
  }
}

void File::sync() const {
  if (::fdatasync(fd_) != 0) {
    throw_errno("fdatasync", path_);
  }
}

void File::close() {
  // Linux frees the descriptor whatever close() returns.
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) {
    throw_errno("close", path_);
  }
}

Folder Folder::open(const std::filesystem::path& path) {
  const int fd =
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == EACCES) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "[checkpoint] {}: {}",
          path.string(),
          errno == ENOENT    ? "there is no such folder"
          : errno == ENOTDIR ? "it is not a folder"
                             : "it may not be read"));
    }
    throw_errno("open", path);
  }
  return Folder(File(fd, path));
}

Folder Folder::create(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0777) != 0) {
    throw_errno("mkdir", path);
  }
  return open(path);
}

File Folder::open_file(const std::string& name) const {
  const auto where = path().string();
  if (!is_plain_file_name(name)) {
    throw_corrupt(
        where,
        in_quotes(name) + " is not a valid name for a file in this folder");
  }
  // Without O_NONBLOCK a FIFO would wait here for its other end.
  const int fd = open_beneath(
      this->fd(), name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
  if (fd < 0) {
    throw_corrupt(
        where,
        fmt::format(
            "{} {}",
            name,
            errno == ENOENT ? "is missing"
            : errno == ELOOP
                ? "is a symbolic link, which Weft does not follow. Replace it "
                  "with the file itself"
                : std::string("cannot be opened: ") + std::strerror(errno)));
  }
  File file(fd, path() / name);
  if (!S_ISREG(status_of(file).st_mode)) {
    throw_corrupt(where, name + " is not a regular file");
  }
  return file;
}

File Folder::create_file(const std::string& name) const {
  check_name(*this, name);
  const int fd = open_beneath(
      this->fd(), name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    throw_errno("create", path() / name);
  }
  return {fd, path() / name};
}

std::vector<FolderEntry> Folder::list() const {
  // Opens another descriptor, because the position in a folder belongs to the
  // descriptor.
  const int fd = ::openat(this->fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    throw_errno("open", path());
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd), ::closedir);
  if (!stream) {
    ::close(fd);
    throw_errno("fdopendir", path());
  }
  std::vector<FolderEntry> entries;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    struct stat status {};
    if (name == "." || name == ".." ||
        ::fstatat(fd, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      errno = 0; // deleted meanwhile
      continue;
    }
    entries.push_back(
        {name,
         S_ISREG(status.st_mode),
         S_ISDIR(status.st_mode),
         S_ISREG(status.st_mode) ? status.st_size : 0});
  }
  if (errno != 0) {
    throw_errno("readdir", path());
  }
  std::ranges::sort(entries, {}, &FolderEntry::name);
  return entries;
}

bool Folder::has(const std::string& name) const {
  struct stat status {};
  return ::fstatat(fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

void Folder::rename(const std::string& from, const std::string& to) const {
  constexpr unsigned kNoReplace = 1; // RENAME_NOREPLACE
  if (::renameat2(fd(), from.c_str(), fd(), to.c_str(), kNoReplace) == 0) {
    return;
  }
  // Some network file systems support no flags. The caller holds the store's
  // lock, so no other writer creates `to` after the check.
  if (errno == EINVAL || errno == ENOSYS) {
    if (has(to)) {
      throw_errno("rename to", path() / to, EEXIST);
    }
    if (::renameat(fd(), from.c_str(), fd(), to.c_str()) == 0) {
      return;
    }
  }
  throw_errno("rename to", path() / to);
}

void Folder::rename_over(const std::string& from, const std::string& to) const {
  if (::renameat(fd(), from.c_str(), fd(), to.c_str()) != 0) {
    throw_errno("rename to", path() / to);
  }
}

void Folder::sync() const {
  if (::fsync(fd()) != 0) {
    throw_errno("fsync", path());
  }
}

void make_folders(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode)) {
      throw_errno("mkdir", path, ENOTDIR);
    }
    return;
  }
  const auto above =
      path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (above != path) {
    make_folders(above);
  }
  // Another process may create it meanwhile.
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    throw_errno("mkdir", path);
  }
  // A folder that this user may search but not read cannot be opened, and is
  // not synced.
  const int fd = ::open(above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0 && ::fsync(File(fd, above).fd()) != 0) {
    throw_errno("fsync", above);
  }
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.size() <= static_cast<size_t>(limits::kFileName) &&
         name.find('/') == std::string_view::npos && !has_control_bytes(name) &&
         is_utf8(name);
}

} // namespace weft::checkpoint
