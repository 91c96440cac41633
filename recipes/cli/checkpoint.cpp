#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/compare.h"
#include "checkpoint/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/store.h"
#include "checkpoint/verify.h"
#include "mesh/error.h"
#include "recipes/cli/checkpoint_text.h"
#include "recipes/cli/commands.h"

namespace weft::recipes::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointError;
using Json = nlohmann::ordered_json;

std::string sentence_of(const CheckpointError& error) {
  return error.what_without_backtrace();
}

// One row of `ls`; a checkpoint that cannot be read is a row as well.
Json describe_step(const checkpoint::StepFolder& step, bool is_latest) {
  Json row = {{"step", step.step}, {"path", step.path.string()}};
  try {
    const auto manifest = checkpoint::read_manifest(step.path);
    row["created"] = manifest.created;
    row["bytes"] = bytes_of(manifest);
    row["tensors"] = manifest.tensors.size();
    row["files"] = manifest.files.size();
    row["damage"] = nullptr;
  } catch (const CheckpointError& error) {
    row["damage"] = sentence_of(error);
  }
  row["latest"] = is_latest;
  return row;
}

void list(const CheckpointArguments& arguments) {
  const auto checkpoints = checkpoints_of(arguments.path);
  const auto folder = checkpoint::Folder::open(checkpoints);
  if (folder.has(checkpoint::kManifestName)) {
    mesh::throw_error<mesh::UsageError>(fmt::format(
        "{} is one checkpoint; ls lists those of a run. To look into this one: "
        "weft checkpoint inspect {}",
        arguments.path,
        arguments.path));
  }
  const auto latest = checkpoint::read_latest(checkpoints);
  Json rows = Json::array();
  for (const auto& step : checkpoint::list_steps(checkpoints)) {
    rows.push_back(describe_step(step, step.step == latest));
  }
  if (arguments.json) {
    print(Json{{"checkpoints", checkpoints.string()}, {"steps", rows}});
    return;
  }
  if (rows.empty()) {
    print(fmt::format("no checkpoints in {}", checkpoints.string()));
    return;
  }
  print(fmt::format(
      "{:>10}  {:<20}  {:>10}  {:>7}  {:>5}",
      "step",
      "saved",
      "size",
      "tensors",
      "files"));
  for (const auto& row : rows) {
    const auto step = row["step"].get<int64_t>();
    if (!row["damage"].is_null()) {
      print(fmt::format(
          "{:>10}  damaged: {}", step, row["damage"].get<std::string>()));
      continue;
    }
    print(fmt::format(
        "{:>10}  {:<20}  {:>10}  {:>7}  {:>5}{}",
        step,
        row["created"].get<std::string>(),
        size_text(row["bytes"].get<int64_t>()),
        row["tensors"].get<int64_t>(),
        row["files"].get<int64_t>(),
        row["latest"].get<bool>() ? "  latest" : ""));
  }
}

Json describe(const checkpoint::Damage& damage) {
  return {
      {"file", damage.file},
      {"tensor", damage.tensor},
      {"offset", damage.offset < 0 ? Json() : Json(damage.offset)},
      {"what", damage.what}};
}

void verify(const CheckpointArguments& arguments) {
  Json folders = Json::array();
  size_t count = 0;
  std::string first;
  for (const auto& path : steps_of(arguments.path)) {
    const auto damages = checkpoint::verify(path);
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
      const auto manifest = checkpoint::read_manifest(path);
      print(fmt::format(
          "{}: sound, {} in {} files",
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
        "{} {}: {}", count, count == 1 ? "damage" : "damages", first));
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

void diff(const CheckpointArguments& arguments) {
  const auto a = newest_step_of(arguments.path);
  const auto b = newest_step_of(arguments.other);
  const auto result = checkpoint::compare(a, b);
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
  if (count > 0) { // exit 1: the answer is no
    mesh::throw_error<c10::Error>(fmt::format(
        "{} and {} differ: {} {}",
        a.string(),
        b.string(),
        count,
        count == 1 ? "difference" : "differences"));
  }
}

CLI::App* add(
    CLI::App& checkpoint,
    const std::string& name,
    const std::string& text,
    const std::shared_ptr<CheckpointArguments>& arguments,
    void (*run)(const CheckpointArguments&)) {
  auto* command = checkpoint.add_subcommand(name, text);
  command->add_flag("--json", arguments->json, "One line of JSON on stdout");
  command->callback([arguments, run] { run(*arguments); });
  return command;
}

} // namespace

void add_checkpoint(CLI::App& app) {
  auto* command = app.add_subcommand(
      "checkpoint", "Look at checkpoints, bring models in and out");
  command->require_subcommand(1);
  const auto arguments = std::make_shared<CheckpointArguments>();
  const char* any =
      "A step folder; or a run, or its folder of checkpoints, for its newest";
  add(*command, "ls", "List the checkpoints of a run", arguments, list)
      ->add_option(
          "run", arguments->path, "A run, or its folder of checkpoints")
      ->required();
  add(*command,
      "verify",
      "Read every byte and report all damage (exit 4)",
      arguments,
      verify)
      ->add_option(
          "folder",
          arguments->path,
          "A step folder; or a run, or its folder of checkpoints, for all")
      ->required();
  auto* differ = add(
      *command,
      "diff",
      "Compare values, step and state, whatever the meshes (exit 1: differ)",
      arguments,
      diff);
  differ->add_option("a", arguments->path, any)->required();
  differ->add_option("b", arguments->other, any)->required();
  auto* inspector =
      add(*command,
          "inspect",
          "Show what a checkpoint holds, or where one tensor lies in it",
          arguments,
          inspect_checkpoint);
  inspector->add_option("folder", arguments->path, any)->required();
  inspector->add_option("tensor", arguments->other, "Only this one");
  add_checkpoint_hub(*command);
}

} // namespace weft::recipes::cli
