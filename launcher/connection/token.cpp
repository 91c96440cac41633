#include "launcher/connection/token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/unique_fd.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

constexpr size_t kMin = 32;
constexpr size_t kMax = 1024;
constexpr const char* kRecipe =
    "Make one, the same on all hosts: (umask 077; openssl rand -hex 32 > "
    "token)";

base::UniqueFd open_private(const std::string& path) {
  base::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    throw_errno("--token-file " + path);
  }
  struct stat status {};
  fstat(fd.get(), &status);
  if (!S_ISREG(status.st_mode)) {
    throw LaunchError(
        fmt::format("--token-file {} is not a regular file.", path));
  }
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    throw LaunchError(fmt::format(
        "--token-file {} belongs to user {}, not to you ({}). Use a copy that "
        "you own.",
        path,
        status.st_uid,
        geteuid()));
  }
  if ((status.st_mode & 077) != 0) {
    throw LaunchError(fmt::format(
        "--token-file {} has mode {:04o}, which gives other users access. Run "
        "chmod 600 {}.",
        path,
        status.st_mode & 07777,
        path));
  }
  return fd;
}

} // namespace

std::string read_token(const std::string& path, int fd) {
  if (path.empty() == (fd < 0)) {
    throw LaunchError(
        path.empty()
            ? fmt::format(
                  "a run on several hosts requires a token (--token-file PATH "
                  "or --token-fd N). {}, and copy it to all hosts.",
                  kRecipe)
            : "--token-file and --token-fd cannot be combined. Give only one "
              "of them.");
  }
  const std::string origin =
      path.empty() ? fmt::format("--token-fd {}", fd) : "--token-file " + path;
  const base::UniqueFd input =
      path.empty() ? base::UniqueFd(fd) : open_private(path);
  std::string text(kMax + 2, '\0');
  size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < text.size();) {
    got = read(input.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) {
      got = 1;
    } else if (got < 0) {
      throw_errno(origin);
    } else {
      size += static_cast<size_t>(got);
    }
  }
  text.resize(size);
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  if (text.size() < kMin || text.size() > kMax) {
    throw LaunchError(fmt::format(
        "{} has {} bytes, expected {} to {}. {}",
        origin,
        text.size(),
        kMin,
        kMax,
        kRecipe));
  }
  return text;
}

} // namespace weft::launcher
