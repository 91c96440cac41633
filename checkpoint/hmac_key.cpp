#include "checkpoint/hmac_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "checkpoint/files/folder.h"
#include "mesh/error/error.h"

namespace weft::checkpoint {
namespace {

constexpr size_t kMinKeyBytes = 16;
constexpr size_t kMaxKeyBytes = 4096;

[[noreturn]] void refuse_key(const std::string& path, const std::string& why) {
  mesh::throw_error<mesh::UsageError>(fmt::format("\"{}\": {}", path, why));
}

// Reads the file up to the size that shows that the key is too long.
std::string read_start(int fd, const std::string& path) {
  std::string text(kMaxKeyBytes + 2, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const auto got = ::read(fd, text.data() + size, text.size() - size);
    if (got == 0) {
      break;
    }
    if (got < 0 && errno != EINTR) {
      refuse_key(path, std::strerror(errno));
    }
    size += static_cast<size_t>(std::max<ssize_t>(got, 0));
  }
  text.resize(size);
  return text;
}

} // namespace

HmacKey read_hmac_key(const std::string& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path);
  struct stat status {};
  if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) {
    refuse_key(path, std::strerror(errno));
  }
  HmacKey key{
      .text = read_start(file.fd(), path),
      .others_may_read = (status.st_mode & (S_IRGRP | S_IROTH)) != 0};
  if (key.text.ends_with('\n')) {
    key.text.pop_back();
  }
  const auto size = key.text.size();
  if (size < kMinKeyBytes || size > kMaxKeyBytes) {
    refuse_key(
        path,
        fmt::format(
            "expected a key of {} to {} bytes, got {}. Create one with "
            "`openssl rand -hex 32`",
            kMinKeyBytes,
            kMaxKeyBytes,
            size > kMaxKeyBytes ? "more" : std::to_string(size)));
  }
  return key;
}

} // namespace weft::checkpoint
