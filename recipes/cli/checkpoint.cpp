#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/compare.h"
#include "checkpoint/dtype.h"
#include "checkpoint/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/store.h"
#include "checkpoint/verify.h"
#include "mesh/error.h"
#include "recipes/cli/commands.h"
#include "recipes/config/suggest.h"

namespace weft::recipes::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointError;
using checkpoint::Manifest;
using Json = nlohmann::ordered_json;

struct Arguments {
  std::string path;
  std::string other; // diff's second folder, inspect's tensor
  bool json = false;
};

void print(const std::string& text) {
  std::printf("%s\n", text.c_str());
}

// Also for names that are not UTF-8, which a folder may have.
void print(const Json& json) {
  print(json.dump(-1, ' ', false, Json::error_handler_t::replace));
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

int64_t bytes_of(const Manifest& manifest) {
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

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// A run's folder has its checkpoints one below.
fs::path checkpoints_of(const fs::path& path) {
  return is_folder(path / "checkpoints") ? path / "checkpoints" : path;
}

// The steps that `path` stands for: of a run, of a folder checkpoints/, or the
// one that it is itself, newest first.
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
  const auto newest = steps_of(path).front();
  if (newest != path) {
    std::fprintf(stderr, "taking %s\n", newest.c_str());
  }
  return newest;
}

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

void list(const Arguments& arguments) {
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

void verify(const Arguments& arguments) {
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

void diff(const Arguments& arguments) {
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

Json describe(const checkpoint::TensorRecord& tensor) {
  Json chunks = Json::array();
  for (const auto& chunk : tensor.chunks) {
    chunks.push_back(
        {{"file", chunk.file},
         {"offset", chunk.offset},
         {"shape", chunk.shape},
         {"bytes", {chunk.begin, chunk.end}}});
  }
  return {
      {"dtype", checkpoint::plain_name(tensor.dtype)},
      {"shape", tensor.shape},
      {"bytes", bytes_of(tensor)},
      {"placements", tensor.placements},
      {"mesh", tensor.mesh},
      {"chunks", chunks}};
}

Json describe(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = file.bytes;
  }
  Json tensors = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    tensors[name] = describe(tensor);
  }
  return {
      {"step", manifest.step},
      {"created", manifest.created},
      {"weft", manifest.weft_version},
      {"torch", manifest.torch_version},
      {"bytes", bytes_of(manifest)},
      {"files", files},
      {"tensors", tensors},
      {"state", Json::parse(manifest.state)},
      {"layout", Json::parse(manifest.layout)}};
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void print_tensors(const Manifest& manifest) {
  size_t width = 6;
  for (const auto& [name, tensor] : manifest.tensors) {
    width = std::max(width, name.size());
  }
  print(fmt::format(
      "{:<{}}  {:<9}  {:<16}  {:>10}  {:>6}  {}",
      "tensor",
      width,
      "dtype",
      "shape",
      "size",
      "chunks",
      "lay as"));
  for (const auto& [name, tensor] : manifest.tensors) {
    print(fmt::format(
        "{:<{}}  {:<9}  {:<16}  {:>10}  {:>6}  {}{}{}",
        name,
        width,
        checkpoint::plain_name(tensor.dtype),
        shape_text(tensor.shape),
        size_text(bytes_of(tensor)),
        tensor.chunks.size(),
        tensor.placements,
        tensor.mesh.empty() ? "" : " on ",
        tensor.mesh));
  }
}

void print_tensor(
    const std::string& name,
    const checkpoint::TensorRecord& tensor) {
  print(fmt::format(
      "{}: {} {}, {}",
      name,
      checkpoint::plain_name(tensor.dtype),
      shape_text(tensor.shape),
      size_text(bytes_of(tensor))));
  print(fmt::format("  lay as {} on {}", tensor.placements, tensor.mesh));
  for (const auto& chunk : tensor.chunks) {
    print(fmt::format(
        "  {} at {}: {}, bytes {} to {}",
        shape_text(chunk.shape),
        shape_text(chunk.offset),
        chunk.file,
        chunk.begin,
        chunk.end));
  }
}

[[noreturn]] void refuse_tensor(
    const Manifest& manifest,
    const fs::path& path,
    const std::string& name) {
  std::string nearest;
  auto least = static_cast<int64_t>(name.size() / 3 + 1);
  for (const auto& [known, tensor] : manifest.tensors) {
    const auto distance = edit_distance(name, known);
    if (distance <= least) {
      least = distance;
      nearest = known;
    }
  }
  mesh::throw_error<mesh::UsageError>(fmt::format(
      "{} has no tensor \"{}\"{}",
      path.string(),
      name,
      nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

void inspect(const Arguments& arguments) {
  const auto path = newest_step_of(arguments.path);
  const checkpoint::StepPin pin(path);
  const auto manifest = checkpoint::read_manifest(pin.folder());
  const auto& name = arguments.other;
  const auto tensor = manifest.tensors.find(name);
  if (!name.empty() && tensor == manifest.tensors.end()) {
    refuse_tensor(manifest, path, name);
  }
  if (arguments.json) {
    print(
        name.empty() ? describe(manifest)
                     : Json{{name, describe(tensor->second)}});
    return;
  }
  if (!name.empty()) {
    print_tensor(name, tensor->second);
    return;
  }
  print(fmt::format(
      "step {}, saved {} by weft {} with libtorch {}",
      manifest.step,
      manifest.created,
      manifest.weft_version,
      manifest.torch_version));
  print(fmt::format(
      "{} tensors, {} files, {}",
      manifest.tensors.size(),
      manifest.files.size(),
      size_text(bytes_of(manifest))));
  print_tensors(manifest);
  print("state " + manifest.state);
  print("layout " + manifest.layout);
}

CLI::App* add(
    CLI::App& checkpoint,
    const std::string& name,
    const std::string& text,
    const std::shared_ptr<Arguments>& arguments,
    void (*run)(const Arguments&)) {
  auto* command = checkpoint.add_subcommand(name, text);
  command->add_flag("--json", arguments->json, "One line of JSON on stdout");
  command->callback([arguments, run] { run(*arguments); });
  return command;
}

} // namespace

void add_checkpoint(CLI::App& app) {
  auto* command = app.add_subcommand("checkpoint", "Look at checkpoints");
  command->require_subcommand(1);
  const auto arguments = std::make_shared<Arguments>();
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
          inspect);
  inspector->add_option("folder", arguments->path, any)->required();
  inspector->add_option("tensor", arguments->other, "Only this one");
}

} // namespace weft::recipes::cli
