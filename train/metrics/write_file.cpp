#include "train/metrics/write_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "mesh/error/error.h"
#include "mesh/error/resource_limits.h"

namespace weft::train {
namespace {

[[noreturn]] void cannot_write(
    const std::string& path,
    const std::string& why) {
  mesh::throw_error<mesh::UsageError>(
      fmt::format("cannot write \"{}\": {}", path, why));
}

} // namespace

void write_file(const std::string& path, std::string_view text) {
  std::error_code error;
  // A device or a pipe is written to, not replaced.
  if (std::filesystem::is_directory(path, error)) {
    cannot_write(path, "is a folder");
  }
  const bool is_special = std::filesystem::exists(path, error) &&
                          !std::filesystem::is_regular_file(path, error);
  const std::string other =
      is_special ? path : fmt::format("{}.{}.tmp", path, ::getpid());
  errno = 0;
  std::ofstream file(other, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    const int reason = errno;
    const auto why = std::strerror(reason) + mesh::limit_behind(reason);
    if (!is_special) {
      std::filesystem::remove(other, error);
    }
    cannot_write(path, why);
  }
  if (!is_special) {
    std::filesystem::rename(other, path, error);
    if (error) {
      std::error_code ignored;
      std::filesystem::remove(other, ignored);
      cannot_write(path, error.message());
    }
  }
}

} // namespace weft::train
