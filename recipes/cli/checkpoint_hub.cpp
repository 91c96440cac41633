#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "recipes/cli/checkpoint_text.h"
#include "recipes/hub/export_model.h"
#include "recipes/hub/import_model.h"

namespace weft::recipes::cli {
namespace {

struct HubArguments {
  std::string from;
  std::string to;
  std::string dtype;
  int64_t max_shard_bytes = hub::ExportOptions().max_shard_bytes;
  bool json = false;
};

void import_folder(const HubArguments& arguments) {
  const auto done = hub::import_model(arguments.from, arguments.to);
  if (arguments.json) {
    print(nlohmann::ordered_json{
        {"path", done.path.string()},
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

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  if (name.empty()) {
    return std::nullopt;
  }
  return name == "float32"    ? at::kFloat
         : name == "bfloat16" ? at::kBFloat16
                              : at::kHalf;
}

void export_folder(const HubArguments& arguments) {
  const auto step = newest_step_of(arguments.from);
  const auto done = hub::export_model(
      step,
      arguments.to,
      {.dtype = dtype_of(arguments.dtype),
       .max_shard_bytes = arguments.max_shard_bytes});
  for (const auto& note : done.notes) {
    std::fprintf(stderr, "%s\n", note.c_str());
  }
  if (arguments.json) {
    print(nlohmann::ordered_json{
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

using Run = void (*)(const HubArguments&);

CLI::App& add_to(
    CLI::App& checkpoint,
    const char* name,
    const char* text,
    const std::shared_ptr<HubArguments>& arguments,
    Run run) {
  auto* command = checkpoint.add_subcommand(name, text);
  command->add_flag("--json", arguments->json, "One line of JSON on stdout");
  command->callback([arguments, run] { run(*arguments); });
  return *command;
}

} // namespace

void add_checkpoint_hub(CLI::App& checkpoint) {
  const auto arguments = std::make_shared<HubArguments>();
  auto& importer = add_to(
      checkpoint,
      "import",
      "Make a checkpoint of a model in Hugging Face's form",
      arguments,
      import_folder);
  importer
      .add_option(
          "from", arguments->from, "A folder of config.json and safetensors")
      ->required();
  importer
      .add_option("to", arguments->to, "A folder, in which step-0 will be it")
      ->required();
  auto& exporter = add_to(
      checkpoint,
      "export",
      "Write a checkpoint's model in Hugging Face's form, adapters merged",
      arguments,
      export_folder);
  const char* any =
      "A step folder; or a run, or its folder of checkpoints, for its newest";
  exporter.add_option("from", arguments->from, any)->required();
  exporter.add_option("to", arguments->to, "A new folder")->required();
  exporter
      .add_option(
          "--dtype",
          arguments->dtype,
          "float32, bfloat16 or float16; default: as in the checkpoint")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  exporter
      .add_option(
          "--max-shard-size",
          arguments->max_shard_bytes,
          "Of tensors in one file: 5GB, 200MB; default: 5GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check([](const std::string& bytes) {
        return std::string(
            bytes == "0" || bytes.starts_with('-') ? "at least 1 byte" : "");
      });
}

} // namespace weft::recipes::cli
