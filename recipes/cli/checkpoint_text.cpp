#include "recipes/cli/checkpoint_text.h"

#include <cstdio>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/folder.h"
#include "checkpoint/store.h"

namespace weft::recipes::cli {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

} // namespace

void print(const std::string& text) {
  std::printf("%s\n", text.c_str());
}

// Also for names that are not UTF-8, which a folder may have.
void print(const nlohmann::ordered_json& json) {
  print(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string size_text(int64_t bytes) {
  constexpr double kStep = 1024;
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double size = static_cast<double>(bytes) / kStep;
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    if (size < kStep) {
      return fmt::format("{:.1f} {}", size, unit);
    }
    size /= kStep;
  }
  return fmt::format("{:.1f} TiB", size);
}

int64_t bytes_of(const checkpoint::Manifest& manifest) {
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) {
    bytes += file.bytes;
  }
  return bytes;
}

int64_t bytes_of(const checkpoint::TensorRecord& tensor) {
  int64_t bytes = 0;
  for (const auto& chunk : tensor.chunks) {
    bytes += chunk.end - chunk.begin;
  }
  return bytes;
}

fs::path checkpoints_of(const fs::path& path) {
  return is_folder(path / "checkpoints") ? path / "checkpoints" : path;
}

std::vector<fs::path> steps_of(const fs::path& path) {
  const auto folder = checkpoint::Folder::open(path);
  std::vector<fs::path> paths;
  if (!folder.has(checkpoint::kManifestName)) {
    for (const auto& step : checkpoint::list_steps(checkpoints_of(path))) {
      paths.push_back(step.path);
    }
  }
  return paths.empty() ? std::vector{path} : paths;
}

fs::path newest_step_of(const fs::path& path) {
  auto newest = steps_of(path).front();
  if (newest != path) {
    std::fprintf(stderr, "taking %s\n", newest.c_str());
  }
  return newest;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

} // namespace weft::recipes::cli
