#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "checkpoint/files/text.h"
#include "checkpoint/store/store.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

constexpr const char* kLockName = ".lock";

[[noreturn]] void refuse_lock(
    const std::filesystem::path& checkpoints,
    const std::string& why) {
  mesh::throw_error<mesh::UsageError>(
      fmt::format("[checkpoint] {}: {}", checkpoints.string(), why));
}

[[noreturn]] void refuse_errno(
    const std::filesystem::path& checkpoints,
    int error) {
  refuse_lock(
      checkpoints,
      fmt::format(
          "checkpoints cannot be written here: {}", std::strerror(error)));
}

File open_lock(const std::filesystem::path& checkpoints) {
  try {
    make_folders(checkpoints);
  } catch (const std::system_error& error) {
    refuse_errno(checkpoints, error.code().value());
  }
  const auto path = checkpoints / kLockName;
  const int fd = ::open(
      path.c_str(),
      O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
      0666);
  if (fd < 0) {
    refuse_errno(checkpoints, errno);
  }
  return {fd, path};
}

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

std::string read_all(const File& file) {
  std::string text(512, '\0');
  const auto size = file.read_at(0, std::as_writable_bytes(std::span(text)));
  text.resize(static_cast<size_t>(size));
  return text.substr(0, text.find('\n'));
}

void take(const File& file, const std::filesystem::path& checkpoints) {
  while (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      const auto holder = read_all(file);
      refuse_lock(
          checkpoints,
          fmt::format(
              "another run is writing checkpoints here ({}). Wait for it, or "
              "set another output_dir.",
              holder.empty() ? "an unknown process" : holder));
    }
    if (errno != EINTR) {
      refuse_errno(checkpoints, errno);
    }
  }
}

// Returns true if the name still belongs to the locked file. See
// StoreLock::remove_file().
bool is_in_place(const File& file) {
  struct stat ours {};
  struct stat named {};
  return ::fstat(file.fd(), &ours) == 0 &&
         ::lstat(file.path().c_str(), &named) == 0 &&
         ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

} // namespace

StoreLock::StoreLock(const std::filesystem::path& checkpoints)
    : file_(open_lock(checkpoints)) {
  take(file_, checkpoints);
  while (!is_in_place(file_)) {
    file_ = open_lock(checkpoints);
    take(file_, checkpoints);
  }
  // The text is for users. The lock itself is in the kernel and ends with the
  // process.
  const auto text = this_process() + "\n";
  const std::array parts = {std::as_bytes(std::span(text))};
  try {
    if (::ftruncate(file_.fd(), 0) != 0) {
      refuse_errno(checkpoints, errno);
    }
    file_.write_at(0, parts);
  } catch (const std::system_error& error) {
    // Reports a full disk before a step is written.
    refuse_errno(checkpoints, error.code().value());
  }
}

bool StoreLock::has_file(const std::filesystem::path& checkpoints) {
  return std::filesystem::exists(checkpoints / kLockName);
}

void StoreLock::remove_file() const noexcept {
  ::unlink(file_.path().c_str());
}

} // namespace weft::checkpoint
