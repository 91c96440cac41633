#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/inference.h"
#include "cli/log.h"
#include "cli/program.h"
#include "inference/eval_samples.h"
#include "inference/evaluate.h"
#include "inference/inference_model.h"
#include "mesh/world.h"

namespace weft::cli {
namespace {

struct EvalArguments : InferenceArguments {
  std::string tokens;
};

std::string result_text(
    const inference::Evaluation& result,
    const std::string& what) {
  return fmt::format(
      "loss {:.6f}  perplexity {:.4f}  over {} targets of {}\n",
      result.loss,
      result.perplexity,
      result.targets,
      what);
}

std::string result_json(const inference::Evaluation& result) {
  return base::strict_json_text(nlohmann::ordered_json{
             {"loss", result.loss},
             {"perplexity", result.perplexity},
             {"tokens", result.targets},
             {"samples", result.samples}}) +
         "\n";
}

void eval(const EvalArguments& arguments) {
  const bool reads_data = arguments.tokens.empty();
  const auto recipe = load_for_inference(arguments, reads_data);
  const auto samples = reads_data
                           ? inference::heldout_samples(recipe)
                           : inference::token_windows(recipe, arguments.tokens);
  inference::check_weights(
      recipe, arguments.checkpoint, arguments.weight_kind());
  const auto mesh =
      join_mesh(recipe, "data (the size of its files)", samples.fingerprint);
  const auto model = inference::load_model(
      recipe,
      mesh,
      arguments.checkpoint,
      command_log(),
      arguments.weight_kind());
  const auto result = inference::evaluate(
      *model, mesh, samples, recipe.train.micro_batch_size, command_log());
  if (mesh.world().rank() == 0) {
    write_to_stdout(
        arguments.json ? result_json(result)
                       : result_text(result, samples.text));
  }
}

} // namespace

void add_eval(Program& program) {
  auto arguments = std::make_shared<EvalArguments>();
  auto* command = program.add_subcommand(
      "eval", "Compute the loss of a recipe's model; writes nothing");
  add_inference_arguments(
      program, *command, *arguments, "mesh.tp=4 train.micro_batch_size=16");
  command->add_option(
      "--tokens",
      arguments->tokens,
      "A file of raw little-endian uint16 tokens, e.g. from weft tokenize; the "
      "recipe then needs no data. Default: the recipe's validation data, its "
      "last 1 %");
  command->footer(
      "Tokens are split into windows of data.sequence_length + 1 tokens, one "
      "every data.sequence_length tokens. An incomplete window at the end is "
      "dropped. The loss is the mean over all predicted tokens.\nA replica "
      "takes train.micro_batch_size windows at a time (default: at most 8).");
  command->callback([arguments] { eval(*arguments); });
}

} // namespace weft::cli
