#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/transfer/reshard.h"
#include "cli/checkpoint_text.h"
#include "cli/log.h"
#include "cli/progress_bar.h"

namespace weft::cli {
namespace {

struct ReshardArguments : OutputOptions {
  std::string from;
  std::string to;
  std::string mesh;
  std::string hmac_key_file;
  bool sha256 = false;
};

void reshard(const ReshardArguments& arguments) {
  checkpoint::ReshardOptions options;
  options.mesh = checkpoint::parse_mesh_sizes(arguments.mesh);
  options.sha256 = arguments.sha256;
  options.hmac_key = read_key(arguments.hmac_key_file);
  const auto step = newest_step_of(arguments.from);
  ProgressBar bar("resharding", arguments.wants_progress());
  options.progress = bar.callback();
  const auto done = checkpoint::reshard(step, arguments.to, options);
  bar.erase();
  for (const auto& note : done.notes) {
    command_log().info(note);
  }
  std::string mesh;
  for (const auto& [name, size] : options.mesh) {
    mesh += fmt::format("{}{}={}", mesh.empty() ? "" : " ", name, size);
  }
  if (arguments.json) {
    print(nlohmann::ordered_json{
        {"path", done.path.string()},
        {"checkpoint", step.string()},
        {"mesh", mesh},
        {"tensors", done.tensors},
        {"files", done.files},
        {"bytes", done.bytes},
        {"notes", done.notes}});
    return;
  }
  print(fmt::format(
      "{}: {} tensors, {} in {} {}, sharded for {}",
      done.path.string(),
      done.tensors,
      size_text(done.bytes),
      done.files,
      done.files == 1 ? "file" : "files",
      mesh));
}

} // namespace

void add_checkpoint_reshard(CLI::App& checkpoint) {
  const auto arguments = std::make_shared<ReshardArguments>();
  auto* command = checkpoint.add_subcommand(
      "reshard", "Write a checkpoint with the sharding of another mesh");
  command->add_option("from", arguments->from, kAnyFolder)->required();
  command
      ->add_option(
          "to",
          arguments->to,
          "Output folder; the checkpoint is written to step-N in it. It may be "
          "the folder of a run")
      ->required();
  command
      ->add_option(
          "--mesh",
          arguments->mesh,
          "All dims of the checkpoint's mesh, with new sizes: dp=1,tp=4")
      ->required();
  command->add_flag(
      "--sha256",
      arguments->sha256,
      "Store a SHA-256 hash of every piece in addition to XXH3");
  add_key(*command, arguments->hmac_key_file);
  add_json(*command, *arguments);
  add_quiet(*command, *arguments);
  command->callback([arguments] { reshard(*arguments); });
}

} // namespace weft::cli
