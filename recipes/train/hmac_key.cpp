#include "recipes/train/hmac_key.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

namespace weft::recipes {
namespace {

constexpr const char* kHmacKey = "checkpoint.hmac_key_file";
constexpr size_t kLeastKeyBytes = 16;
constexpr size_t kMostKeyBytes = 4096;

[[noreturn]] void refuse_key(const Recipe& recipe, const std::string& what) {
  refuse(
      recipe,
      kHmacKey,
      fmt::format("\"{}\": {}", recipe.checkpoint.hmac_key_file, what));
}

// A byte more than a key may have, and a line feed.
std::string read_start(const Recipe& recipe) {
  errno = 0;
  std::ifstream file(recipe.checkpoint.hmac_key_file, std::ios::binary);
  std::string text(kMostKeyBytes + 2, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    refuse_key(
        recipe,
        fmt::format(
            "cannot be read: {}", std::strerror(errno == 0 ? EIO : errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

} // namespace

std::string read_hmac_key(
    const Recipe& recipe,
    const std::function<void(const std::string&)>& warn) {
  const auto& path = recipe.checkpoint.hmac_key_file;
  if (path.empty()) {
    return "";
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    refuse_key(recipe, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    refuse_key(recipe, "is not a regular file");
  }
  auto key = read_start(recipe);
  if (key.ends_with('\n')) {
    key.pop_back();
  }
  if (key.size() < kLeastKeyBytes || key.size() > kMostKeyBytes) {
    refuse_key(
        recipe,
        fmt::format(
            "a key has {} to {} bytes, and this one {}. `openssl rand -hex 32` "
            "makes one",
            kLeastKeyBytes,
            kMostKeyBytes,
            key.size() > kMostKeyBytes ? "more" : std::to_string(key.size())));
  }
  if (warn && (status.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    warn(fmt::format(
        "{}: other users may read it, and so sign checkpoints: chmod 600 {}",
        place_of(recipe, kHmacKey),
        path));
  }
  return key;
}

} // namespace weft::recipes
