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

#include "checkpoint/folder.h"
#include "checkpoint/foreign.h"
#include "checkpoint/import_tensors.h"
#include "checkpoint/key_pattern.h"
#include "mesh/error.h"
#include "recipes/cli/checkpoint_text.h"
#include "recipes/cli/progress_bar.h"
#include "recipes/hub/config.h"
#include "recipes/hub/export_model.h"
#include "recipes/hub/export_tensors.h"
#include "recipes/hub/import_model.h"

namespace weft::recipes::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct HubArguments : OutputOptions {
  std::string from;
  std::string to;
  std::vector<std::string> rename; // REGEX=REPLACEMENT
  std::string hmac_key_file;
  // import
  std::string as = "auto";
  std::optional<std::string> prefix;
  int64_t step = 0;
  bool sha256 = false;
  // export
  std::string format = "huggingface";
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  std::string dtype;
  /// "model" or "ema".
  std::string weights = "model";
  int64_t max_shard_bytes = hub::ExportOptions().max_shard_bytes;
};

[[noreturn]] void refuse_words(const std::string& what) {
  mesh::throw_error<mesh::UsageError>(what);
}

std::vector<checkpoint::RenameRule> rules_of(
    const std::vector<std::string>& texts) {
  std::vector<checkpoint::RenameRule> rules;
  for (const auto& text : texts) {
    const auto equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      refuse_words(fmt::format(
          "--rename {}: a regular expression, =, and what its matches become: "
          "--rename '^module\\.='",
          text));
    }
    rules.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return rules;
}

// A foreign source of tensors: a folder, or one file of it.
struct TensorSource {
  checkpoint::Folder folder;
  checkpoint::Manifest manifest;
};

TensorSource open_tensors(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    auto folder = checkpoint::Folder::open(path);
    if (folder.has(checkpoint::kManifestName)) {
      refuse_words(fmt::format(
          "{} is a checkpoint of Weft's already: load it as it is, or cut it "
          "anew with weft checkpoint reshard",
          path.string()));
    }
    auto manifest = checkpoint::describe_foreign(folder);
    return {std::move(folder), std::move(manifest)};
  }
  if (fs::status(path, ignored).type() == fs::file_type::not_found) {
    refuse_words(
        fmt::format("{}: there is no such file or folder", path.string()));
  }
  auto folder = checkpoint::Folder::open(
      path.has_parent_path() ? path.parent_path() : fs::path("."));
  auto manifest =
      checkpoint::describe_foreign(folder, path.filename().string());
  return {std::move(folder), std::move(manifest)};
}

// Whether a folder holds a model in Hugging Face's form, and not the files
// that ranks wrote of one ("shard-00001-model-...").
bool looks_like_model(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    return false;
  }
  const auto folder = checkpoint::Folder::open(path);
  const auto entries = folder.list();
  return folder.has(hub::kConfigName) &&
         std::ranges::none_of(entries, [](const auto& entry) {
           return entry.name.starts_with("shard-") &&
                  entry.name.ends_with(".safetensors");
         });
}

bool has_part(const std::string& name) {
  return name.starts_with("model.") || name.starts_with("optimizer.");
}

void import_tensors(const HubArguments& arguments) {
  const checkpoint::Renaming renaming(rules_of(arguments.rename));
  const auto source = open_tensors(arguments.from);
  // Without --prefix: the names are keys if all of them have a part.
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

void import_model(const HubArguments& arguments) {
  if (!arguments.rename.empty() || arguments.prefix || arguments.step != 0 ||
      arguments.sha256 || !arguments.hmac_key_file.empty()) {
    refuse_words(
        "--rename, --prefix, --step, --sha256 and --hmac-key-file go with "
        "--as tensors");
  }
  ProgressBar bar("importing", arguments.wants_progress());
  const auto done = hub::import_model(
      arguments.from, arguments.to, int64_t{128} << 20, bar.callback());
  bar.erase();
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

void import_any(const HubArguments& arguments) {
  const bool is_model =
      arguments.as == "model" ||
      (arguments.as == "auto" && looks_like_model(arguments.from));
  if (arguments.as == "auto" && !arguments.quiet) {
    std::fprintf(
        stderr,
        "taking %s as %s\n",
        arguments.from.c_str(),
        is_model ? "a model of Hugging Face's (--as tensors: as it is)"
                 : "tensors");
  }
  is_model ? import_model(arguments) : import_tensors(arguments);
}

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name.empty()) {
    return std::nullopt;
  }
  return name == "float32"    ? at::kFloat
         : name == "bfloat16" ? at::kBFloat16
                              : at::kHalf;
}

void export_model(const HubArguments& arguments) {
  if (!arguments.rename.empty() || !arguments.include.empty() ||
      !arguments.exclude.empty() || !arguments.hmac_key_file.empty()) {
    refuse_words(
        "--include, --exclude, --rename and --hmac-key-file go with --format "
        "safetensors");
  }
  const auto step = newest_step_of(arguments.from);
  ProgressBar bar("exporting", arguments.wants_progress());
  hub::ExportOptions options;
  options.dtype = dtype_of(arguments.dtype);
  options.max_shard_bytes = arguments.max_shard_bytes;
  options.averaged = arguments.weights == "ema";
  options.progress = bar.callback();
  const auto done = hub::export_model(step, arguments.to, options);
  bar.erase();
  for (const auto& note : done.notes) {
    std::fprintf(stderr, "%s\n", note.c_str());
  }
  if (arguments.json) {
    print(Json{
        {"path", arguments.to},
        {"checkpoint", step.string()},
        {"tensors", done.tensors},
        {"files", done.files},
        {"bytes", done.bytes},
        {"merged", done.merged},
        {"others", done.others},
        {"notes", done.notes}});
    return;
  }
  print(fmt::format("{}: {}", arguments.to, hub::describe(done)));
}

void export_tensors(const HubArguments& arguments) {
  hub::ExportTensorsOptions options;
  options.include = arguments.include;
  options.exclude = arguments.exclude;
  options.rename = rules_of(arguments.rename);
  options.dtype = dtype_of(arguments.dtype);
  options.max_shard_bytes = arguments.max_shard_bytes;
  options.hmac_key = read_key(arguments.hmac_key_file);
  const auto step = newest_step_of(arguments.from);
  ProgressBar bar("exporting", arguments.wants_progress());
  options.progress = bar.callback();
  const auto done = hub::export_tensors(step, arguments.to, options);
  bar.erase();
  if (arguments.json) {
    print(Json{
        {"path", arguments.to},
        {"checkpoint", step.string()},
        {"tensors", done.tensors},
        {"files", done.files},
        {"bytes", done.bytes}});
    return;
  }
  print(fmt::format(
      "{}: {} tensors, {} in {} {}",
      arguments.to,
      done.tensors,
      size_text(done.bytes),
      done.files,
      done.files == 1 ? "file" : "files"));
}

void export_any(const HubArguments& arguments) {
  arguments.format == "safetensors" ? export_tensors(arguments)
                                    : export_model(arguments);
}

using Run = void (*)(const HubArguments&);

CLI::App& add_to(
    CLI::App& checkpoint,
    const char* name,
    const char* text,
    const std::shared_ptr<HubArguments>& arguments,
    Run run) {
  auto* command = checkpoint.add_subcommand(name, text);
  add_json(*command, *arguments);
  add_quiet(*command, *arguments);
  add_key(*command, arguments->hmac_key_file);
  command
      ->add_option(
          "--rename",
          arguments->rename,
          "REGEX=REPLACEMENT for names of tensors; several, in turn")
      ->allow_extra_args(false);
  command->callback([arguments, run] { run(*arguments); });
  return *command;
}

void add_import(CLI::App& checkpoint) {
  const auto arguments = std::make_shared<HubArguments>();
  auto& command = add_to(
      checkpoint,
      "import",
      "Make a checkpoint of a model or of tensors in other programs' files",
      arguments,
      import_any);
  command
      .add_option(
          "from",
          arguments->from,
          "A folder of config.json and safetensors; or, as tensors, a folder "
          "of PyTorch's HuggingFaceStorageWriter or a .safetensors file")
      ->required();
  command
      .add_option("to", arguments->to, "A folder, in which step-0 will be it")
      ->required();
  command
      .add_option(
          "--as",
          arguments->as,
          "model: under Weft's names, as float32; tensors: as they are; auto: "
          "model, if there is a config.json")
      ->check(CLI::IsMember({"auto", "model", "tensors"}));
  command.add_option(
      "--prefix",
      arguments->prefix,
      "Before each name; default: model. unless all begin with model. or "
      "optimizer.");
  command.add_option("--step", arguments->step, "Its step; default: 0")
      ->check(CLI::Range(int64_t{0}, int64_t{999'999'999'999'999'999}));
  command.add_flag(
      "--sha256", arguments->sha256, "SHA-256 of every piece, beside XXH3");
}

void add_export(CLI::App& checkpoint) {
  const auto arguments = std::make_shared<HubArguments>();
  auto& command = add_to(
      checkpoint,
      "export",
      "Write a checkpoint's model or tensors for other programs",
      arguments,
      export_any);
  command.add_option("from", arguments->from, kAnyFolder)->required();
  command
      .add_option(
          "to", arguments->to, "A new folder; or a new file, NAME.safetensors")
      ->required();
  command
      .add_option(
          "--format",
          arguments->format,
          "huggingface: the model, adapters merged; safetensors: tensors under "
          "their own names. Default: huggingface")
      ->check(CLI::IsMember({"huggingface", "safetensors"}));
  command
      .add_option(
          "--weights",
          arguments->weights,
          "Of huggingface: those of the model, or ema, their running average "
          "(ema.decay). Default: model")
      ->check(CLI::IsMember({"model", "ema"}));
  command
      .add_option(
          "--include",
          arguments->include,
          "Only tensors whose key matches: 'model.**'; several")
      ->allow_extra_args(false);
  command
      .add_option(
          "--exclude", arguments->exclude, "Not those whose key matches")
      ->allow_extra_args(false);
  command
      .add_option(
          "--dtype",
          arguments->dtype,
          "float32, bfloat16 or float16; default: as in the checkpoint")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  command
      .add_option(
          "--max-shard-size,--max_shard_size",
          arguments->max_shard_bytes,
          "Of tensors in one file: 5GB, 200MB; default: 5GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check([](const std::string& bytes) {
        return std::string(
            bytes == "0" || bytes.starts_with('-') ? "at least 1 byte" : "");
      });
}

} // namespace

void add_checkpoint_hub(CLI::App& checkpoint) {
  add_import(checkpoint);
  add_export(checkpoint);
}

} // namespace weft::recipes::cli
