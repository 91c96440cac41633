#include "train/setup/load_recipe.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/read_file.h"
#include "config/yaml_scan.h"
#include "hf/config_json.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

[[noreturn]] void refuse_file(
    const std::string& path,
    std::string_view message) {
  mesh::throw_error<mesh::UsageError>(fmt::format("{}: {}", path, message));
}

std::string read_file(const std::string& path) {
  struct stat status {};
  if (path.find('\0') != std::string::npos ||
      ::stat(path.c_str(), &status) != 0) {
    refuse_file(path, std::strerror(errno == 0 ? EINVAL : errno));
  }
  if (S_ISDIR(status.st_mode)) {
    refuse_file(path, "is a folder, not a recipe");
  }
  if (!S_ISREG(status.st_mode)) {
    refuse_file(path, "is not a regular file");
  }
  if (status.st_size > config::kMaxYamlBytes) {
    refuse_file(
        path,
        fmt::format(
            "got {} bytes, expected at most {} for a recipe",
            status.st_size,
            config::kMaxYamlBytes));
  }
  auto text = base::read_file(path);
  if (!text) {
    refuse_file(path, "cannot be read");
  }
  return std::move(*text);
}

} // namespace

config::Recipe load_recipe(
    const std::string& path,
    std::span<const std::string> overrides,
    config::KnownModels models) {
  return parse_recipe(read_file(path), path, overrides, std::move(models));
}

config::Recipe load_stored_recipe(
    const std::string& path,
    config::KnownModels models) {
  return config::parse_stored_recipe(read_file(path), path, std::move(models));
}

config::Recipe parse_recipe(
    std::string_view text,
    const std::string& source,
    std::span<const std::string> overrides,
    config::KnownModels models) {
  auto recipe = config::read_recipe(text, source, overrides, std::move(models));
  hf::adopt_config(recipe);
  config::complete(recipe);
  return recipe;
}

} // namespace weft::train
