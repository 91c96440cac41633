#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "cli/inference.h"
#include "cli/log.h"
#include "cli/program.h"
#include "inference/generator.h"
#include "inference/inference_model.h"
#include "inference/prompts.h"
#include "inference/text_stream.h"
#include "mesh/world.h"
#include "models/registry.h"

namespace weft::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Prompts = std::vector<std::vector<int64_t>>;

constexpr int64_t kNewTokens = 128;
constexpr int64_t kMaxTokensOrSamples = int64_t{1} << 40;

struct GenerateArguments : InferenceArguments {
  inference::PromptWords prompt;
  std::optional<std::string> tokenizer;
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> seed;
  std::optional<std::vector<int64_t>> eos;
  int64_t num_samples = 1;
  bool no_cache = false;
  inference::SamplingOptions sampling;
};

// The output on stdout. Rank 0 prints the first sample token by token, and the
// other samples at the end.
class Output {
 public:
  Output(
      const tokenizers::Tokenizer* tokenizer,
      const Prompts& prompts,
      bool has_several)
      : tokenizer_(tokenizer), prompts_(prompts), has_several_(has_several) {}

  // Prints the newest token of the first sample. end() prints the other
  // samples.
  void add(const inference::Continuation& sample) {
    if (!stream_ && sample.sample == 0) {
      begin(sample);
    }
    if (sample.sample == 0) {
      add_token(sample.tokens.back());
    }
  }

  void end(const std::vector<inference::Continuation>& all) {
    for (const auto& sample : all) {
      if (sample.sample != 0) {
        begin(sample);
        for (const int64_t token : sample.tokens) {
          add_token(token);
        }
      }
      write_to_stdout(stream_->finish() + "\n");
    }
  }

 private:
  void begin(const inference::Continuation& sample) {
    const auto& prompt = prompts_[sample.prompt];
    stream_.emplace(tokenizer_, prompt);
    if (has_several_) {
      write_to_stdout(fmt::format("--- {} ---\n", sample.sample));
    }
    write_to_stdout(inference::text_after(tokenizer_, {}, prompt));
    separator_ = tokenizer_ == nullptr ? " " : "";
  }

  void add_token(int64_t token) {
    write_to_stdout(std::exchange(separator_, "") + stream_->add(token));
  }

  const tokenizers::Tokenizer* tokenizer_;
  const Prompts& prompts_;
  bool has_several_;
  std::optional<inference::TextStream> stream_;
  std::string separator_;
};

std::string results_json(
    const std::vector<inference::Continuation>& all,
    const Prompts& prompts,
    const tokenizers::Tokenizer* tokenizer,
    uint64_t seed) {
  auto samples = nlohmann::ordered_json::array();
  for (const auto& each : all) {
    const auto& prompt = prompts[each.prompt];
    nlohmann::ordered_json sample{
        {"prompt", each.prompt},
        {"prompt_tokens", prompt},
        {"tokens", each.tokens},
        {"finish_reason", each.ended ? "eos" : "length"}};
    if (tokenizer != nullptr) {
      sample["text"] = inference::text_after(tokenizer, prompt, each.tokens);
    }
    samples.push_back(std::move(sample));
  }
  const nlohmann::ordered_json result{{"seed", seed}, {"samples", samples}};
  // A model may generate half of a UTF-8 character, which json_text() replaces.
  return base::json_text(result) + "\n";
}

void log_speed(
    const std::vector<inference::Continuation>& all,
    Clock::time_point start) {
  size_t tokens = 0;
  for (const auto& each : all) {
    tokens += each.tokens.size();
  }
  const double seconds =
      std::chrono::duration<double>(Clock::now() - start).count();
  command_log().info(fmt::format(
      "{} tokens in {:.2f} s, prompts included: {:.0f} tokens/s",
      tokens,
      seconds,
      static_cast<double>(tokens) / seconds));
}

// Logs how many tokens have no text. A model may have a larger vocabulary than
// its tokenizer, and sample from all of it.
void log_unknown_tokens(
    const std::vector<inference::Continuation>& all,
    const tokenizers::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) {
    return;
  }
  int64_t unknown = 0;
  for (const auto& each : all) {
    unknown += std::ranges::count_if(each.tokens, [&](int64_t token) {
      return token >= tokenizer->vocab_size();
    });
  }
  if (unknown > 0) {
    command_log().info(fmt::format(
        "{} tokens are not among the {} of the tokenizer ({}) and were left "
        "out; --json writes their numbers, and --tokenizer selects another "
        "tokenizer",
        unknown,
        tokenizer->vocab_size(),
        tokenizer->describe()));
  }
}

// Logs why there is no tokenizer, or which one is used with model.from.
void log_tokenizer(
    const config::Recipe& recipe,
    const tokenizers::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) {
    command_log().info(fmt::format(
        "tokens are written as numbers, without a tokenizer: {}",
        inference::why_no_tokenizer(recipe)));
  } else if (!recipe.model.from.empty()) {
    command_log().info(
        fmt::format("text is that of {}", tokenizer->describe()));
  }
}

// Returns the arguments that must be equal on all ranks.
std::string told(
    const Prompts& prompts,
    int64_t num_samples,
    const inference::GenerationOptions& options) {
  const auto& sampling = options.sampling;
  return base::strict_json_text(nlohmann::json{
      prompts,
      num_samples,
      options.max_new_tokens,
      options.eos,
      options.use_cache,
      sampling.temperature,
      sampling.top_k,
      sampling.top_p,
      sampling.seed});
}

void log_length(const config::Recipe& recipe, const config::Recipe& to_run) {
  if (to_run.data.sequence_length > recipe.data.sequence_length) {
    command_log().info(fmt::format(
        "up to {} tokens: longer than the data.sequence_length of {}",
        to_run.data.sequence_length,
        recipe.data.sequence_length));
  }
}

void check_generates(const config::Recipe& recipe) {
  if (models::model_input(recipe) != models::ModelInput::kTokens) {
    config::refuse(
        recipe,
        "model.type",
        fmt::format(
            "a {} classifies images and cannot generate text. Use weft eval",
            models::model_title(recipe)));
  }
}

inference::GenerationOptions options_of(
    const GenerateArguments& arguments,
    const config::Recipe& recipe,
    const tokenizers::Tokenizer* tokenizer,
    const Prompts& prompts) {
  inference::GenerationOptions options{
      .sampling = arguments.sampling,
      .max_new_tokens = inference::clamp_new_tokens(
          recipe, prompts, arguments.max_new_tokens, kNewTokens),
      .eos = arguments.eos ? *arguments.eos
                           : inference::end_tokens(recipe, tokenizer),
      .use_cache = !arguments.no_cache};
  options.sampling.seed =
      static_cast<uint64_t>(arguments.seed.value_or(recipe.seed));
  return options;
}

int64_t longest_of(const Prompts& prompts, int64_t max_new_tokens) {
  size_t length = 0;
  for (const auto& prompt : prompts) {
    length = std::max(length, prompt.size());
  }
  return static_cast<int64_t>(length) + max_new_tokens;
}

void run_generate(const GenerateArguments& arguments) {
  auto recipe = load_for_inference(arguments, /*reads_data=*/false);
  check_generates(recipe);
  const auto tokenizer = inference::find_tokenizer(recipe, arguments.tokenizer);
  const auto prompts =
      inference::prompt_tokens(recipe, arguments.prompt, tokenizer.get());
  const auto options = options_of(arguments, recipe, tokenizer.get(), prompts);
  inference::check_weights(
      recipe, arguments.checkpoint, arguments.weight_kind());
  const auto to_run = inference::recipe_to_generate(
      recipe, longest_of(prompts, options.max_new_tokens));
  const auto mesh = join_mesh(
      to_run,
      "prompts and how they are continued",
      told(prompts, arguments.num_samples, options));
  const bool is_first = mesh.world().rank() == 0;
  if (is_first) {
    log_tokenizer(recipe, tokenizer.get());
    log_length(recipe, to_run);
  }
  const auto model = inference::load_model(
      to_run,
      mesh,
      arguments.checkpoint,
      command_log(),
      arguments.weight_kind());
  const auto start = Clock::now();
  const bool has_several = prompts.size() > 1 || arguments.num_samples > 1;
  Output output(tokenizer.get(), prompts, has_several);
  const auto all = inference::gather_continuations(
      mesh,
      inference::generate(
          *model,
          mesh,
          prompts,
          arguments.num_samples,
          options,
          [&](const auto& sample) {
            if (is_first && !arguments.json) {
              output.add(sample);
            }
          }));
  if (is_first && arguments.json) {
    write_to_stdout(
        results_json(all, prompts, tokenizer.get(), options.sampling.seed));
  } else if (is_first) {
    output.end(all);
  }
  if (is_first) {
    log_unknown_tokens(all, tokenizer.get());
    log_speed(all, start);
  }
}

// Returns a validator that refuses NaN, unlike CLI::Range.
CLI::Validator number_in(double least, double most) {
  const CLI::Range range(least, most);
  return {
      [range](std::string& text) {
        double value = 0;
        const bool is_number =
            CLI::detail::lexical_cast(text, value) && !std::isnan(value);
        return is_number ? range(text) : "\"" + text + "\" is not a number";
      },
      fmt::format("FLOAT in [{} - {}]", least, most)};
}

void add_prompt_options(CLI::App& command, GenerateArguments& arguments) {
  command
      .add_option(
          "--prompt",
          arguments.prompt.texts,
          "The text to continue. Can be repeated")
      ->allow_extra_args(false);
  command.add_option(
      "--prompt-file",
      arguments.prompt.file,
      "A file with the text to continue");
  command
      .add_option(
          "--prompt-tokens",
          arguments.prompt.tokens,
          "The tokens to continue: 1,2,3")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option(
      "--tokenizer",
      arguments.tokenizer,
      "byte, a SentencePiece *.model, a tokenizer.json, or a folder with one "
      "of them. Default: the recipe's tokenizer, or that of model.from");
}

void add_sampling_options(CLI::App& command, GenerateArguments& arguments) {
  auto& sampling = arguments.sampling;
  command
      .add_option(
          "--max-new-tokens",
          arguments.max_new_tokens,
          "Maximum number of new tokens. Default: 128, or the number that the "
          "model's positions allow")
      ->check(CLI::Range(int64_t{1}, kMaxTokensOrSamples));
  command
      .add_option(
          "--temperature",
          sampling.temperature,
          "Divisor of the logits. 0 always selects the most likely token")
      ->check(number_in(0, 1e6))
      ->capture_default_str();
  command
      .add_option(
          "--top-k",
          sampling.top_k,
          "Samples from this number of most likely tokens. 0 means all")
      ->check(CLI::Range(int64_t{0}, kMaxTokensOrSamples))
      ->capture_default_str();
  command
      .add_option(
          "--top-p",
          sampling.top_p,
          "Samples from the most likely tokens with this total probability")
      ->check(number_in(0, 1))
      ->capture_default_str();
  command
      .add_option(
          "--seed",
          arguments.seed,
          "Seed of the sampling (default: the recipe's). The same seed gives "
          "the same tokens on every mesh")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()));
}

void add_sample_options(CLI::App& command, GenerateArguments& arguments) {
  command
      .add_option(
          "--num-samples",
          arguments.num_samples,
          "Number of continuations of each prompt, divided among the replicas "
          "(mesh.dp)")
      ->check(CLI::Range(int64_t{1}, kMaxTokensOrSamples))
      ->capture_default_str();
  command
      .add_option(
          "--eos-token-id",
          arguments.eos,
          "Tokens that end a sample: 2 or 2,3. -1 means none. Default: those "
          "of the tokenizer and of model.from")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_flag(
      "--no-cache",
      arguments.no_cache,
      "Recomputes keys and values for each token, for comparison");
}

} // namespace

void add_generate(Program& program) {
  auto arguments = std::make_shared<GenerateArguments>();
  auto* command =
      program.add_subcommand("generate", "Generate text with a recipe's model");
  add_inference_arguments(
      program, *command, *arguments, "mesh.tp=4 train.dtype=bfloat16");
  add_prompt_options(*command, *arguments);
  add_sampling_options(*command, *arguments);
  add_sample_options(*command, *arguments);
  command->footer(
      "Prompt and continuation are written to stdout token by token, "
      "everything else to stderr.");
  command->callback([arguments] { run_generate(*arguments); });
}

} // namespace weft::cli
