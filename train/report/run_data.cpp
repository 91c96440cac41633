#include "train/report/run_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "base/read_file.h"
#include "config/yaml_tree.h"
#include "mesh/error/error.h"

namespace weft::train {
namespace {

[[noreturn]] void refuse_folder(const std::string& folder, const char* why) {
  mesh::throw_error<mesh::UsageError>(fmt::format("{}: {}", folder, why));
}

constexpr int64_t kMaxLayoutBytes = 256 << 20;

// Returns the text of a file. Adds a note and returns nothing if the file is
// missing, too large or unreadable.
std::optional<std::string>
read_text(RunData& run, const char* name, int64_t max_bytes) {
  const auto path = (std::filesystem::path(run.folder) / name).string();
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    run.notes.push_back(fmt::format("{}: {}", name, std::strerror(errno)));
    return std::nullopt;
  }
  if (!S_ISREG(status.st_mode) || status.st_size > max_bytes) {
    run.notes.push_back(fmt::format(
        "{}: not a regular file of at most {} bytes", name, max_bytes));
    return std::nullopt;
  }
  auto text = base::read_file(path);
  if (!text) {
    run.notes.push_back(fmt::format("{}: cannot be read", name));
  }
  return text;
}

std::string value_text(const config::YamlNode& node) {
  switch (node.kind) {
    case config::YamlNode::Kind::kNull:
      return "null";
    case config::YamlNode::Kind::kScalar:
      return node.text;
    case config::YamlNode::Kind::kList:
    case config::YamlNode::Kind::kMap:
      break;
  }
  const bool is_map = node.kind == config::YamlNode::Kind::kMap;
  std::string text = is_map ? "{" : "[";
  for (size_t i = 0; i < node.items.size(); ++i) {
    text.append(i > 0 ? ", " : "");
    text.append(is_map ? value_text(node.keys[i]) + ": " : "");
    text.append(value_text(node.items[i]));
  }
  return text.append(is_map ? "}" : "]");
}

void flatten(
    const config::YamlNode& map,
    const std::string& prefix,
    RunData& run) {
  for (size_t i = 0; i < map.keys.size(); ++i) {
    const auto path = prefix + value_text(map.keys[i]);
    const auto& value = map.items[i];
    if (value.kind == config::YamlNode::Kind::kMap && !value.keys.empty()) {
      flatten(value, path + ".", run);
    } else {
      run.recipe.emplace_back(path, value_text(value));
    }
  }
}

// Reads the recipe without its schema, because another version may have written
// it.
void read_recipe(RunData& run) {
  const auto text = read_text(run, "recipe.yaml", config::kMaxYamlBytes);
  if (!text) {
    return;
  }
  try {
    const auto root = config::parse_yaml(*text);
    if (root.kind != config::YamlNode::Kind::kMap) {
      run.notes.emplace_back("recipe.yaml: not a map of keys to values");
      return;
    }
    flatten(root, "", run);
  } catch (const config::YamlError& error) {
    run.notes.push_back(fmt::format(
        "recipe.yaml:{}:{}: {}",
        error.where().line,
        error.where().column,
        error.what()));
  }
  if (const auto* name = run.recipe_value("name"); name && !name->empty()) {
    run.label = *name;
  }
  if (const auto* steps = run.recipe_value("train.steps")) {
    std::from_chars(
        steps->data(), steps->data() + steps->size(), run.total_steps);
  }
}

void read_layout(RunData& run) {
  const auto path = std::filesystem::path(run.folder) / "layout.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return; // the page reports the missing file
  }
  const auto text = read_text(run, "layout.json", kMaxLayoutBytes);
  if (!text) {
    return;
  }
  try {
    run.layout = parse_rank_shares(*text);
  } catch (const mesh::UsageError& problem) {
    run.notes.push_back(
        fmt::format("layout.json: {}", problem.what_without_backtrace()));
  }
}

void read_quorums(RunData& run) {
  auto history = QuorumHistory::read(
      (std::filesystem::path(run.folder) / "quorum.jsonl").string());
  run.quorums = std::move(history.entries);
  if (history.unreadable > 0) {
    run.notes.push_back(fmt::format(
        "quorum.jsonl: {} unreadable lines are left out", history.unreadable));
  }
}

std::string folder_name(const std::string& folder) {
  std::error_code error;
  const auto absolute = std::filesystem::weakly_canonical(folder, error);
  const auto name =
      (error ? std::filesystem::path(folder) : absolute).filename().string();
  return name.empty() ? folder : name;
}

} // namespace

const std::string* RunData::recipe_value(std::string_view key) const {
  const auto found = std::ranges::find_if(
      recipe, [&](const auto& item) { return item.first == key; });
  return found == recipe.end() ? nullptr : &found->second;
}

RunData read_run(const std::string& folder) {
  struct stat status {};
  if (folder.empty() || folder.find('\0') != std::string::npos ||
      ::stat(folder.c_str(), &status) != 0) {
    refuse_folder(
        folder.empty() ? "\"\"" : folder,
        folder.empty() ? "is not a folder" : std::strerror(errno));
  }
  if (!S_ISDIR(status.st_mode)) {
    refuse_folder(
        folder, "is not a folder; give the folder of a run, like outputs/NAME");
  }
  const auto metrics =
      (std::filesystem::path(folder) / "metrics.jsonl").string();
  if (::stat(metrics.c_str(), &status) != 0) {
    refuse_folder(
        folder,
        "is not a run's folder: it has no metrics.jsonl. Give the folder that "
        "`weft train` wrote, like outputs/NAME");
  }
  if (!S_ISREG(status.st_mode)) {
    refuse_folder(
        folder, "contains a metrics.jsonl that is not a regular file");
  }
  RunData run;
  run.folder = folder;
  run.label = folder_name(folder);
  run.written = status.st_mtim.tv_sec;
  run.metrics = MetricsSeries::read(metrics);
  run.notes = run.metrics.notes;
  if (run.metrics.lines == 0) {
    run.notes.emplace_back("metrics.jsonl has no step yet");
  }
  read_recipe(run);
  read_layout(run);
  read_quorums(run);
  return run;
}

std::vector<RecipeDifference> recipe_differences(
    std::span<const RunData> runs) {
  std::vector<std::string> keys;
  for (const auto& run : runs) {
    for (const auto& [key, value] : run.recipe) {
      if (key != "name" && key != "output_dir" &&
          std::ranges::find(keys, key) == keys.end()) {
        keys.push_back(key);
      }
    }
  }
  std::vector<RecipeDifference> differences;
  for (const auto& key : keys) {
    RecipeDifference difference{key, {}};
    for (const auto& run : runs) {
      const auto* value = run.recipe_value(key);
      difference.values.push_back(value ? std::optional(*value) : std::nullopt);
    }
    const auto& values = difference.values;
    if (std::ranges::any_of(
            values, [&](const auto& v) { return v != values.front(); })) {
      differences.push_back(std::move(difference));
    }
  }
  return differences;
}

} // namespace weft::train
