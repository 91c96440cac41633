#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "cli/explain/estimate_text.h"
#include "cli/explain/measured.h"
#include "cli/explain/step_estimate.h"
#include "cli/program.h"
#include "data/find_files.h"
#include "mesh/error/error.h"
#include "train/setup/validate.h"

namespace weft::cli {
namespace {

// The limit of --world-size, because a mesh stores a list of its ranks.
constexpr int64_t kMaxRanks = int64_t{1} << 20;

struct ExplainArguments : RecipeArguments {
  int64_t world_size = 0;
  int64_t ranks_per_host = 0;
  std::optional<std::string> measured;
  bool json = false;
};

int64_t world_size_of(
    const config::Recipe& recipe,
    const ExplainArguments& arguments) {
  if (arguments.world_size != 0) {
    return arguments.world_size;
  }
  const auto& mesh = recipe.mesh;
  const auto is_open = [&](int64_t size, const char* key) {
    if (size == -1) {
      config::refuse(
          recipe,
          key,
          "the value -1 depends on the number of ranks, which is unknown here. "
          "Give --world-size");
    }
  };
  is_open(mesh.dp_shard, "mesh.dp_shard");
  // If dp_shard > 1, mesh.dp=-1 needs no --world-size: the estimate is for one
  // replica.
  if (mesh.dp_shard == 1 || mesh.dp != -1) {
    is_open(mesh.dp, "mesh.dp");
  }
  is_open(mesh.tp, "mesh.tp");
  return std::abs(mesh.dp) * mesh.dp_shard * mesh.tp;
}

std::vector<std::string> notes_of(
    const config::Recipe& recipe,
    const std::optional<MeasuredRun>& measured) {
  std::vector<std::string> notes;
  try {
    data::find_files(recipe.data.paths, config::place_of(recipe, "data.paths"));
  } catch (const mesh::UsageError& error) {
    notes.push_back(
        fmt::format("{} (not needed here)", error.what_without_backtrace()));
  }
  if (measured && measured->steps == 0) {
    notes.emplace_back(
        "the run was not traced, so the times of the single collectives are "
        "unknown. Train with trace.steps=5 to get them");
  }
  if (recipe.cost_model == config::CostModel::kMeasure &&
      recipe.links == config::LinksConfig()) {
    notes.emplace_back(
        "cost_model: measure takes effect in weft train, and the recipe.yaml "
        "of a run has the measured costs; explain uses the default table");
  }
  return notes;
}

void explain(const ExplainArguments& arguments) {
  at::set_num_threads(1); // The meta device computes nothing.
  auto recipe = arguments.load();
  train::validate(recipe, world_size_of(recipe, arguments));
  std::optional<MeasuredRun> measured;
  if (arguments.measured) {
    measured = read_measured(*arguments.measured, recipe);
  }
  const auto estimate =
      estimate_step(recipe, {.ranks_per_host = arguments.ranks_per_host});
  const EstimateContext context{
      .recipe = recipe,
      .measured = measured ? &*measured : nullptr,
      .over_budget = over_budget(estimate, recipe.communication_budget),
      .notes = notes_of(recipe, measured)};
  const auto text = arguments.json ? to_json(estimate, context) + "\n"
                                   : to_text(estimate, context);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    mesh::throw_error<mesh::UsageError>(
        fmt::format("cannot write to stdout: {}", std::strerror(errno)));
  }
  if (!context.over_budget.empty()) {
    // c10::Error means exit code 1: the check failed.
    mesh::throw_error<c10::Error>(
        fmt::format("over budget: {}", fmt::join(context.over_budget, "; ")));
  }
}

} // namespace

void add_explain(Program& program) {
  auto arguments = std::make_shared<ExplainArguments>();
  auto* command = program.add_subcommand(
      "explain",
      "Estimate memory and communication of a recipe's step, without starting "
      "processes");
  add_recipe_arguments(program, *command, *arguments, "mesh.tp=4");
  command
      ->add_option(
          "--world-size",
          arguments->world_size,
          "Number of ranks (default: the number that the recipe's mesh needs)")
      ->check(CLI::Range(int64_t{1}, kMaxRanks));
  command
      ->add_option(
          "--ranks-per-host",
          arguments->ranks_per_host,
          "Number of consecutive ranks on a host, which have faster links. "
          "Default: 8 with device: cuda, otherwise all")
      ->check(CLI::Range(int64_t{1}, kMaxRanks));
  command->add_option(
      "--measured",
      arguments->measured,
      "Folder of a run, outputs/NAME: shows its measured times next to the "
      "estimates. With trace.steps=5 it has those of each collective");
  command->add_flag("--json", arguments->json, "One line of JSON");
  command->footer(
      "Exits with 1 if the step exceeds the recipe's communication_budget.");
  command->callback([arguments] { explain(*arguments); });
}

} // namespace weft::cli
