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

namespace weft::recipes {
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
  if (status.st_size > kMaxYamlBytes) {
    refuse_file(
        path,
        fmt::format(
            "got {} bytes, expected at most {} for a recipe",
            status.st_size,
            kMaxYamlBytes));
  }
  auto text = base::read_file(path);
  if (!text) {
    refuse_file(path, "cannot be read");
  }
  return std::move(*text);
}

} // namespace

Recipe load_recipe(
    const std::string& path,
    std::span<const std::string> overrides,
    KnownModels models) {
  return parse_recipe(read_file(path), path, overrides, std::move(models));
}

Recipe load_stored_recipe(const std::string& path, KnownModels models) {
  return parse_stored_recipe(read_file(path), path, std::move(models));
}

Recipe parse_recipe(
    std::string_view text,
    const std::string& source,
    std::span<const std::string> overrides,
    KnownModels models) {
  auto recipe = read_recipe(text, source, overrides, std::move(models));
  hub::adopt_config(recipe);
  complete(recipe);
  return recipe;
}

} // namespace weft::recipes
