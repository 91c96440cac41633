#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/compare.h"
#include "checkpoint/files/error.h"
#include "checkpoint/store/store.h"
#include "checkpoint/verify.h"
#include "cli/checkpoint_text.h"
#include "cli/program.h"
#include "cli/progress_bar.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointError;
using Json = nlohmann::ordered_json;

Json describe(const checkpoint::Corruption& damage) {
  return {
      {"file", damage.file},
      {"tensor", damage.tensor},
      {"offset", damage.offset < 0 ? Json() : Json(damage.offset)},
      {"what", damage.what}};
}

void verify(const CheckpointArguments& arguments) {
  const auto key = read_key(arguments.hmac_key_file);
  ProgressBar bar("verifying", arguments.wants_progress());
  Json folders = Json::array();
  size_t count = 0;
  std::string first;
  for (const auto& path : steps_of(arguments.path)) {
    const auto damages = checkpoint::verify(path, key, bar.callback());
    bar.erase();
    if (!damages.empty() && first.empty()) {
      first = (path / checkpoint::to_string(damages.front())).string();
    }
    count += damages.size();
    Json rows = Json::array();
    for (const auto& damage : damages) {
      rows.push_back(describe(damage));
      if (!arguments.json) {
        print((path / checkpoint::to_string(damage)).string());
      }
    }
    if (!arguments.json && damages.empty()) {
      const auto manifest = checkpoint::read_manifest(path, key);
      print(fmt::format(
          "{}: valid, {} in {} files",
          path.string(),
          size_text(bytes_of(manifest)),
          manifest.files.size()));
    }
    folders.push_back(
        {{"path", path.string()},
         {"sound", damages.empty()},
         {"damages", rows}});
  }
  if (arguments.json) {
    print(Json{{"sound", count == 0}, {"folders", folders}});
  }
  if (count > 0) {
    mesh::throw_error<CheckpointError>(fmt::format(
        "damaged: {}{}",
        first,
        count == 1 ? "" : fmt::format(" (and {} more)", count - 1)));
  }
}

Json describe(const checkpoint::Difference& difference) {
  Json row = {{"name", difference.name}, {"what", difference.what}};
  if (difference.elements > 0) {
    row["elements"] = difference.elements;
    row["max_abs"] = difference.max_abs; // null if infinite
    row["first"] = difference.first;
  }
  return row;
}

// Puts differences without differing elements (e.g. of shapes) first, then
// sorts by decreasing magnitude.
void sort_by_size(std::vector<checkpoint::Difference>& differences) {
  std::ranges::stable_sort(
      differences, [](const auto& left, const auto& right) {
        const bool left_has = left.elements > 0;
        const bool right_has = right.elements > 0;
        return left_has != right_has ? right_has : left.max_abs > right.max_abs;
      });
}

void diff(const CheckpointArguments& arguments) {
  const auto key = read_key(arguments.hmac_key_file);
  const auto a = newest_step_of(arguments.path);
  const auto b = newest_step_of(arguments.other);
  ProgressBar bar("comparing", arguments.wants_progress());
  auto result = checkpoint::compare(a, b, key, bar.callback());
  bar.erase();
  sort_by_size(result.differences);
  const auto count = result.differences.size();
  if (arguments.json) {
    Json rows = Json::array();
    for (const auto& difference : result.differences) {
      rows.push_back(describe(difference));
    }
    print(Json{
        {"equal", count == 0},
        {"a", a.string()},
        {"b", b.string()},
        {"tensors", result.tensors},
        {"bytes", result.bytes},
        {"differences", rows}});
  } else {
    for (const auto& difference : result.differences) {
      print(difference.name + ": " + difference.what);
    }
    if (count == 0) {
      print(fmt::format(
          "equal: {} tensors, {}, bit for bit, and all of the state",
          result.tensors,
          size_text(result.bytes)));
    }
  }
  if (count > 0) { // c10::Error means exit code 1
    mesh::throw_error<c10::Error>(fmt::format(
        "{} and {} differ: {} {}",
        a.string(),
        b.string(),
        count,
        count == 1 ? "difference" : "differences"));
  }
}

CLI::App& add(
    CLI::App& checkpoint,
    const std::string& name,
    const std::string& text,
    const std::shared_ptr<CheckpointArguments>& arguments,
    void (*run)(const CheckpointArguments&)) {
  auto* command = checkpoint.add_subcommand(name, text);
  add_key(*command, arguments->hmac_key_file);
  add_json(*command, *arguments);
  command->callback([arguments, run] { run(*arguments); });
  return *command;
}

} // namespace

void add_checkpoint(CLI::App& app) {
  auto* command = app.add_subcommand(
      "checkpoint", "Inspect, verify, reshard, import and export checkpoints");
  command->require_subcommand(1);
  add_checkpoint_store(*command);
  const auto arguments = std::make_shared<CheckpointArguments>();
  auto& verifier =
      add(*command,
          "verify",
          "Verify every byte and report all damage (exit code 4)",
          arguments,
          verify);
  verifier
      .add_option(
          "folder",
          arguments->path,
          "A step folder, or a run's folder or its checkpoints folder for all "
          "checkpoints")
      ->required();
  add_quiet(verifier, *arguments);
  auto& differ =
      add(*command,
          "diff",
          "Compare values, step and state of two checkpoints on any meshes "
          "(exit code 1 if they differ)",
          arguments,
          diff);
  differ.add_option("a", arguments->path, kAnyFolder)->required();
  differ.add_option("b", arguments->other, kAnyFolder)->required();
  add_quiet(differ, *arguments);
  auto& inspector = add(
      *command,
      "inspect",
      "Show the content of a checkpoint, or the files and chunks of one tensor",
      arguments,
      inspect_checkpoint);
  inspector.add_option("folder", arguments->path, kAnyFolder)->required();
  inspector.add_option("tensor", arguments->other, "Show only this tensor");
  add_checkpoint_reshard(*command);
  add_checkpoint_import(*command);
  add_checkpoint_export(*command);
}

} // namespace weft::cli
