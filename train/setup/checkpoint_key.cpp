#include "train/setup/checkpoint_key.h"

#include <filesystem>

#include <fmt/format.h>

#include "checkpoint/hmac_key.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

constexpr const char* kHmacKey = "checkpoint.hmac_key_file";

} // namespace

std::string read_hmac_key(
    const config::Recipe& recipe,
    const std::function<void(const std::string&)>& warn) {
  const auto& path = recipe.checkpoint.hmac_key_file;
  if (path.empty()) {
    return "";
  }
  // Every rank reads the key several times, so a pipe cannot be used.
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) &&
      !std::filesystem::is_regular_file(path, ignored)) {
    config::refuse(
        recipe, kHmacKey, fmt::format("\"{}\": is not a regular file", path));
  }
  try {
    auto key = checkpoint::read_hmac_key(path);
    if (warn && key.others_may_read) {
      warn(fmt::format(
          "{}: other users can read this key and forge signatures. Run chmod "
          "600 {}",
          config::place_of(recipe, kHmacKey),
          path));
    }
    return key.text;
  } catch (const mesh::UsageError& error) {
    config::refuse(recipe, kHmacKey, error.what_without_backtrace());
  }
}

} // namespace weft::train
