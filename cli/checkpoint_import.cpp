#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/files/folder.h"
#include "checkpoint/load/key_pattern.h"
#include "checkpoint/transfer/describe_safetensors.h"
#include "checkpoint/transfer/import_tensors.h"
#include "cli/checkpoint_text.h"
#include "cli/log.h"
#include "cli/progress_bar.h"
#include "hf/config_json.h"
#include "hf/import_model.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ImportArguments : OutputOptions {
  std::string from;
  std::string to;
  std::vector<std::string> rename; // REGEX=REPLACEMENT
  std::string hmac_key_file;
  std::string as = "auto";
  std::optional<std::string> prefix;
  int64_t step = 0;
  bool sha256 = false;
};

[[noreturn]] void refuse_import(const std::string& what) {
  mesh::throw_error<mesh::UsageError>(what);
}

struct TensorSource {
  checkpoint::Folder folder;
  checkpoint::Manifest manifest;
};

TensorSource open_tensors(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    auto folder = checkpoint::Folder::open(path);
    if (folder.has(checkpoint::kManifestName)) {
      refuse_import(fmt::format(
          "{} is already a Weft checkpoint: load it directly, or change its "
          "sharding with weft checkpoint reshard",
          path.string()));
    }
    auto manifest = checkpoint::describe_safetensors(folder);
    return {std::move(folder), std::move(manifest)};
  }
  if (fs::status(path, ignored).type() == fs::file_type::not_found) {
    refuse_import(
        fmt::format("{}: there is no such file or folder", path.string()));
  }
  auto folder = checkpoint::Folder::open(
      path.has_parent_path() ? path.parent_path() : fs::path("."));
  auto manifest =
      checkpoint::describe_safetensors(folder, path.filename().string());
  return {std::move(folder), std::move(manifest)};
}

// Returns true if a folder contains a model in Hugging Face format, and not the
// files of a sharded one that each rank wrote ("shard-00001-model-...").
bool looks_like_model(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    return false;
  }
  const auto folder = checkpoint::Folder::open(path);
  const auto entries = folder.list();
  return folder.has(hf::kConfigName) &&
         std::ranges::none_of(entries, [](const auto& entry) {
           return entry.name.starts_with("shard-") &&
                  entry.name.ends_with(".safetensors");
         });
}

bool has_part(const std::string& name) {
  return name.starts_with("model.") || name.starts_with("optimizer.") ||
         name.starts_with("ema.");
}

void import_tensors(const ImportArguments& arguments) {
  const checkpoint::Renaming renaming(rules_of(arguments.rename));
  const auto source = open_tensors(arguments.from);
  // Without --prefix, the names are keys if all of them begin with a part of
  // the state, such as "model.".
  const bool are_keys = std::ranges::all_of(
      source.manifest.tensors,
      [&](const auto& tensor) { return has_part(renaming(tensor.first)); });
  const auto prefix = arguments.prefix.value_or(are_keys ? "" : "model.");
  ProgressBar bar("importing", arguments.wants_progress());
  checkpoint::ImportOptions options;
  options.step = arguments.step;
  options.key_of = [&](const std::string& name) {
    return prefix + renaming(name);
  };
  options.sha256 = arguments.sha256;
  options.hmac_key = read_key(arguments.hmac_key_file);
  options.progress = bar.callback();
  const auto done = checkpoint::import_tensors(
      source.folder, source.manifest, arguments.to, options);
  bar.erase();
  if (arguments.json) {
    print(Json{
        {"path", done.path.string()},
        {"as", "tensors"},
        {"prefix", prefix},
        {"tensors", done.tensors},
        {"files", done.files},
        {"bytes", done.bytes}});
    return;
  }
  print(fmt::format(
      "{}: {} tensors, {}, in their dtypes{}",
      done.path.string(),
      done.tensors,
      size_text(done.bytes),
      prefix.empty() ? "" : fmt::format(", each behind {}", prefix)));
}

void import_model(const ImportArguments& arguments) {
  if (!arguments.rename.empty() || arguments.prefix || arguments.step != 0 ||
      arguments.sha256 || !arguments.hmac_key_file.empty()) {
    refuse_import(
        "--rename, --prefix, --step, --sha256 and --hmac-key-file require --as "
        "tensors");
  }
  ProgressBar bar("importing", arguments.wants_progress());
  const auto done = hf::import_model(
      arguments.from, arguments.to, int64_t{128} << 20, bar.callback());
  bar.erase();
  if (!done.notice.empty()) {
    command_log().info(fmt::format("{}: {}", arguments.from, done.notice));
  }
  if (arguments.json) {
    print(Json{
        {"path", done.path.string()},
        {"as", "model"},
        {"tensors", done.tensors},
        {"bytes", done.bytes}});
    return;
  }
  print(fmt::format(
      "{}: {} tensors, {}, as float32. A run begins with it by "
      "checkpoint.init_from={}",
      done.path.string(),
      done.tensors,
      size_text(done.bytes),
      done.path.string()));
}

void import_any(const ImportArguments& arguments) {
  const bool is_model =
      arguments.as == "model" ||
      (arguments.as == "auto" && looks_like_model(arguments.from));
  if (arguments.as == "auto" && !arguments.quiet) {
    command_log().info(fmt::format(
        "taking {} as {}",
        arguments.from,
        is_model ? "a model of Hugging Face's (--as tensors: as it is)"
                 : "tensors"));
  }
  is_model ? import_model(arguments) : import_tensors(arguments);
}

} // namespace

void add_checkpoint_import(CLI::App& checkpoint) {
  const auto arguments = std::make_shared<ImportArguments>();
  auto& command = *checkpoint.add_subcommand(
      "import", "Convert a model or tensors of other programs to a checkpoint");
  command
      .add_option(
          "from",
          arguments->from,
          "A folder of config.json and safetensors; or, as tensors, a folder "
          "of PyTorch's HuggingFaceStorageWriter or a .safetensors file")
      ->required();
  command
      .add_option(
          "to",
          arguments->to,
          "Output folder; the checkpoint is written to step-0 in it")
      ->required();
  command
      .add_option(
          "--as",
          arguments->as,
          "model: converts to Weft's names and float32; tensors: copies "
          "unchanged; auto: model if there is a config.json, otherwise tensors")
      ->check(CLI::IsMember({"auto", "model", "tensors"}));
  command.add_option(
      "--prefix",
      arguments->prefix,
      "Prefix of each name. Default: model. unless all names begin with a part "
      "of the state (model. optimizer. ema.)");
  command
      .add_option(
          "--step", arguments->step, "Step of the checkpoint (default 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{999'999'999'999'999'999}));
  command.add_flag(
      "--sha256",
      arguments->sha256,
      "Store a SHA-256 hash of every piece in addition to XXH3");
  add_rename(command, arguments->rename);
  add_key(command, arguments->hmac_key_file);
  add_json(command, *arguments);
  add_quiet(command, *arguments);
  command.callback([arguments] { as_usage([&] { import_any(*arguments); }); });
}

} // namespace weft::cli
