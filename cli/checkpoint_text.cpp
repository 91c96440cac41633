#include "cli/checkpoint_text.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "base/json_text.h"
#include "checkpoint/files/folder.h"
#include "checkpoint/hmac_key.h"
#include "checkpoint/store/store.h"
#include "cli/log.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

} // namespace

const char* const kAnyFolder =
    "A step folder, or a run's folder or its checkpoints folder for the newest "
    "checkpoint";

void add_json(CLI::App& command, OutputOptions& options) {
  command.add_flag("--json", options.json, "One line of JSON on stdout");
}

void add_quiet(CLI::App& command, OutputOptions& options) {
  command.add_flag(
      "--quiet",
      options.quiet,
      "Shows no progress. Without a terminal none is shown anyway");
}

void add_key(CLI::App& command, std::string& file) {
  command.add_option(
      "--hmac-key-file,--hmac_key_file",
      file,
      "A file with the key of signed manifests; a checkpoint with another "
      "signature is refused");
}

void add_rename(CLI::App& command, std::vector<std::string>& texts) {
  command
      .add_option(
          "--rename",
          texts,
          "REGEX=REPLACEMENT for names of tensors. Can be repeated; applied in "
          "order")
      ->allow_extra_args(false);
}

std::vector<checkpoint::RenameRule> rules_of(
    const std::vector<std::string>& texts) {
  std::vector<checkpoint::RenameRule> rules;
  for (const auto& text : texts) {
    const auto equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      mesh::throw_error<mesh::UsageError>(fmt::format(
          "--rename {}: expected REGEX=REPLACEMENT, e.g. --rename "
          "'^module\\.=model.'",
          text));
    }
    rules.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return rules;
}

void as_usage(const std::function<void()>& body) {
  try {
    body();
  } catch (const mesh::UsageError&) {
    throw;
  } catch (const c10::ValueError& error) {
    mesh::throw_error<mesh::UsageError>(error.what_without_backtrace());
  }
}

std::string read_key(const std::string& file) {
  if (file.empty()) {
    return {};
  }
  try {
    return checkpoint::read_hmac_key(file).text;
  } catch (const mesh::UsageError& error) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("--hmac-key-file {}", error.what_without_backtrace()));
  }
}

void print(const std::string& text) {
  std::printf("%s\n", text.c_str());
}

// json_text() accepts names that are not UTF-8, which files may have.
void print(const nlohmann::ordered_json& json) {
  print(base::json_text(json));
}

void print_table(
    const std::vector<std::vector<std::string>>& lines,
    std::string_view alignment) {
  std::vector<size_t> widths(alignment.size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], line[i].size());
    }
  }
  for (const auto& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      text += alignment[i] == '<' ? fmt::format("{:<{}}  ", line[i], widths[i])
                                  : fmt::format("{:>{}}  ", line[i], widths[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    print(text);
  }
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

std::string mesh_of(const checkpoint::Manifest& manifest) {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!tensor.mesh.empty()) {
      ++counts[tensor.mesh];
    }
  }
  const auto most = std::ranges::max_element(
      counts, {}, &std::pair<const std::string, int64_t>::second);
  return most == counts.end() ? "" : most->first;
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
  if (paths.empty() && fs::exists(path / "recipe.yaml")) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("{} is a run that has no checkpoint", path.string()));
  }
  return paths.empty() ? std::vector{path} : paths;
}

fs::path newest_step_of(const fs::path& path) {
  auto newest = steps_of(path).front();
  if (newest != path) {
    command_log().info("taking " + newest.string());
  }
  return newest;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

} // namespace weft::cli
