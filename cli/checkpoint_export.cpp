#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/load/key_pattern.h"
#include "cli/checkpoint_text.h"
#include "cli/log.h"
#include "cli/progress_bar.h"
#include "hf/export_model.h"
#include "hf/export_tensors.h"
#include "mesh/error/error.h"

namespace weft::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ExportArguments : OutputOptions {
  std::string from;
  std::string to;
  std::vector<std::string> rename; // REGEX=REPLACEMENT
  std::string hmac_key_file;
  std::string format; // empty: what OUT's name says
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  std::string dtype;
  std::string weights = "model"; // or "ema"
  int64_t max_shard_bytes = hf::ExportOptions().max_shard_bytes;
};

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name.empty()) {
    return std::nullopt;
  }
  return name == "float32"    ? at::kFloat
         : name == "bfloat16" ? at::kBFloat16
                              : at::kHalf;
}

void export_model(const ExportArguments& arguments) {
  if (!arguments.rename.empty() || !arguments.include.empty() ||
      !arguments.exclude.empty() || !arguments.hmac_key_file.empty()) {
    mesh::throw_error<mesh::UsageError>(
        "--include, --exclude, --rename and --hmac-key-file require --format "
        "safetensors");
  }
  const auto step = newest_step_of(arguments.from);
  ProgressBar bar("exporting", arguments.wants_progress());
  hf::ExportOptions options;
  options.dtype = dtype_of(arguments.dtype);
  options.max_shard_bytes = arguments.max_shard_bytes;
  options.averaged = arguments.weights == "ema";
  options.progress = bar.callback();
  const auto done = hf::export_model(step, arguments.to, options);
  bar.erase();
  for (const auto& note : done.notes) {
    command_log().info(note);
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
  print(fmt::format("{}: {}", arguments.to, hf::describe(done)));
}

void export_tensors(const ExportArguments& arguments) {
  if (arguments.weights != "model") {
    mesh::throw_error<mesh::UsageError>(
        "--weights requires --format huggingface. With --format safetensors, "
        "use --include 'ema.**'");
  }
  hf::ExportTensorsOptions options;
  options.include = arguments.include;
  options.exclude = arguments.exclude;
  options.rename = rules_of(arguments.rename);
  options.dtype = dtype_of(arguments.dtype);
  options.max_shard_bytes = arguments.max_shard_bytes;
  options.hmac_key = read_key(arguments.hmac_key_file);
  const auto step = newest_step_of(arguments.from);
  ProgressBar bar("exporting", arguments.wants_progress());
  options.progress = bar.callback();
  const auto done = hf::export_tensors(step, arguments.to, options);
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

void export_any(const ExportArguments& arguments) {
  const bool is_one_file =
      arguments.format.empty() && arguments.to.ends_with(".safetensors");
  arguments.format == "safetensors" || is_one_file ? export_tensors(arguments)
                                                   : export_model(arguments);
}

} // namespace

void add_checkpoint_export(CLI::App& checkpoint) {
  const auto arguments = std::make_shared<ExportArguments>();
  auto& command = *checkpoint.add_subcommand(
      "export", "Convert a checkpoint's model or tensors for other programs");
  command.add_option("from", arguments->from, kAnyFolder)->required();
  command
      .add_option(
          "to", arguments->to, "A new folder, or a new file NAME.safetensors")
      ->required();
  command
      .add_option(
          "--format",
          arguments->format,
          "huggingface: the model with merged adapters; safetensors: tensors "
          "under their own names. Default: safetensors if the output ends with "
          ".safetensors, otherwise huggingface")
      ->check(CLI::IsMember({"huggingface", "safetensors"}));
  command
      .add_option(
          "--weights",
          arguments->weights,
          "For huggingface: the model's weights, or ema, their exponential "
          "moving average (ema.decay). Default: model")
      ->check(CLI::IsMember({"model", "ema"}));
  command
      .add_option(
          "--include",
          arguments->include,
          "Exports only tensors whose key matches, e.g. 'model.**'. Can be "
          "repeated")
      ->allow_extra_args(false);
  command
      .add_option(
          "--exclude",
          arguments->exclude,
          "Skips tensors whose key matches. Can be repeated")
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
          "Maximum size of the tensors in one file, e.g. 200MB (default 5GB)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check([](const std::string& bytes) {
        return std::string(
            bytes == "0" || bytes.starts_with('-') ? "at least 1 byte" : "");
      });
  add_rename(command, arguments->rename);
  add_key(command, arguments->hmac_key_file);
  add_json(command, *arguments);
  add_quiet(command, *arguments);
  command.callback([arguments] { as_usage([&] { export_any(*arguments); }); });
}

} // namespace weft::cli
