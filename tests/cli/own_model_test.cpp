#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/explain/step_estimate.h"
#include "config/schema.h"
#include "mesh/error/error.h"
#include "models/registry.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct BagConfig {
  int64_t width = 0;
  int64_t tokens = 0;
  double scale = 0;
  bool bias = false;
  std::string act;
  std::vector<std::string> tags;
};

BagConfig read_bag(config::ModelOptions& options) {
  BagConfig config{
      .width = options.get<int64_t>("width", {.least = 1, .most = 4096}),
      .tokens = options.get<int64_t>("tokens", {.fallback = 256}),
      .scale = options.get<double>("scale", {.fallback = 1.0, .least = 0}),
      .bias = options.get<bool>("bias", {.fallback = true}),
      .act = options.get<std::string>(
          "act", {.fallback = "relu", .choices = {"relu", "tanh"}}),
      .tags = options.get<std::vector<std::string>>(
          "tags", {.fallback = std::vector<std::string>{}})};
  if (config.width % options.recipe().mesh.tp != 0) {
    options.refuse("width", "mesh.tp does not divide it");
  }
  TORCH_CHECK_VALUE(config.scale != 13, "13 is no scale");
  return config;
}

// Each token for itself.
class BagImpl : public models::Model {
 public:
  explicit BagImpl(const BagConfig& config)
      : scale_(config.scale),
        up(register_module(
            "up",
            torch::nn::Embedding(config.tokens, config.width))),
        down(register_module(
            "down",
            torch::nn::Linear(
                torch::nn::LinearOptions(config.width, config.tokens)
                    .bias(config.bias)))) {}

  at::Tensor forward(const at::Tensor& tokens) override {
    return down(torch::relu(up(tokens)) * scale_);
  }

 private:
  double scale_;
  torch::nn::Embedding up;
  torch::nn::Linear down;
};

models::OwnModel<BagConfig> bag() {
  return {
      .name = "bag",
      .title = "bag of tokens",
      .config = read_bag,
      .outputs = [](const BagConfig& config) { return config.tokens; },
      .make = [](const BagConfig& config) -> std::shared_ptr<models::Model> {
        return std::make_shared<BagImpl>(config);
      },
      .plan = [](const models::PlanOptions& options,
                 const BagConfig& /*config*/) -> tp::ParallelizePlan {
        return {
            {"up", tp::ColwiseParallel()},
            {"down",
             tp::RowwiseParallel({.output_layouts = options.logits()})}};
      }};
}

config::KnownModels with_bag() {
  return models::known_models({models::model_type(bag())});
}

constexpr std::string_view kBag =
    "model:\n"
    "  type: bag\n"
    "  options: {width: 64, act: tanh}\n"
    "data: {paths: [text.txt]}\n";

config::Recipe read_bag_recipe(
    std::string_view text,
    const std::vector<std::string>& overrides = {},
    int64_t world_size = 1) {
  auto recipe = train::parse_recipe(text, "r.yaml", overrides, with_bag());
  train::validate(recipe, world_size);
  return recipe;
}

std::string bag_refusal(
    std::string_view text,
    const std::vector<std::string>& overrides = {}) {
  return fixtures::message_of<mesh::UsageError>(
      [&] { read_bag_recipe(text, overrides); });
}

std::string with_options(const std::string& options) {
  return "model: {type: bag, options: " + options +
         "}\n"
         "data: {paths: [text.txt]}\n";
}

TEST(OwnModel, OptionsAreReadAndCompleted) {
  const auto recipe = read_bag_recipe(
      kBag, {"model.options.scale=2", "model.options={tags: [a, 'b c']}"});
  EXPECT_EQ(
      config::value_of(recipe, "model.options"),
      "{act: tanh, bias: true, scale: 2.0, tags: [a, \"b c\"], tokens: 256, "
      "width: 64}");
  EXPECT_EQ(config::value_of(recipe, "model.options.scale"), "2.0");
  EXPECT_EQ(config::value_of(recipe, "model.options.depth"), "nothing");
  EXPECT_EQ(models::model_title(recipe), "bag of tokens");
  EXPECT_EQ(models::model_outputs(recipe), 256);
  config::ModelOptions options(recipe);
  const auto config = read_bag(options);
  EXPECT_EQ(config.act, "tanh");
  EXPECT_THAT(config.tags, ElementsAre("a", "b c"));
  EXPECT_EQ(models::make_model(recipe)->parameters().size(), 3U);
  EXPECT_EQ(
      models::make_model(read_bag_recipe(kBag, {"model.options.bias=false"}))
          ->parameters()
          .size(),
      2U);
  EXPECT_EQ(models::model_plan(recipe).size(), 2U);
}

TEST(OwnModel, WrittenRecipesAreReadAgain) {
  const auto recipe = read_bag_recipe(kBag);
  const auto text = config::to_yaml(recipe);
  EXPECT_THAT(
      text,
      HasSubstr(
          "model:\n  type: bag\n  options: {act: tanh, bias: true, scale: "
          "1.0, tags: [], tokens: 256, width: 64}\n"));
  EXPECT_THAT(text, HasSubstr("  sequence_parallel: true\n"));
  EXPECT_THAT(text, Not(HasSubstr("heads")));
  EXPECT_THAT(text, Not(HasSubstr("vocab_size")));
  EXPECT_EQ(read_bag_recipe(text), recipe);
  // A value that is written otherwise is the same value.
  const auto same = read_bag_recipe(kBag, {"model.options.scale=1"});
  EXPECT_THAT(config::differing_keys(recipe, same), ElementsAre());
  const auto other = read_bag_recipe(
      kBag, {"model.options.scale=3", "model.options.width=32", "seed=1"});
  EXPECT_THAT(
      config::differing_keys(recipe, other),
      ElementsAre("seed", "model.options.scale", "model.options.width"));
}

TEST(OwnModel, RefusesOptionsAtTheOption) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{width: 64, scael: 2}",
       "r.yaml:1:48: model.options.scael: model.type=bag has no such option; "
       "did you mean scale?"},
      {"{widht: 64}",
       "r.yaml:1:37: model.options.widht: model.type=bag has no such option; "
       "did you mean width?"},
      {"{width: 64, momentum: 2}",
       "r.yaml:1:51: model.options.momentum: model.type=bag has no such "
       "option; it has act, bias, scale, tags, tokens, width"},
      {"{act: relu}",
       "r.yaml:1:29: model.options: model.options.width is required but "
       "missing"},
      {"{width: 6e1}",
       "r.yaml:1:37: model.options.width: expected an integer, found the "
       "number 60.0; write 60"},
      {"{width: wide}",
       "r.yaml:1:37: model.options.width: expected an integer, found the "
       "string \"wide\""},
      {"{width: 0}",
       "r.yaml:1:37: model.options.width: expected at least 1, at most 4096, "
       "found 0"},
      {"{width: 64, scale: -1}",
       "r.yaml:1:48: model.options.scale: expected at least 0, found -1.0"},
      {"{width: 64, act: gelu}",
       "r.yaml:1:46: model.options.act: expected one of relu, tanh, found "
       "gelu"},
      {"{width: 64, bias: 1}",
       "r.yaml:1:47: model.options.bias: expected a bool (true, false), found "
       "the number 1"},
      {"{width: 64, tags: a}",
       "r.yaml:1:47: model.options.tags: expected a list of strings, found the "
       "string \"a\"; write [\"a\"]"},
      {"{width: {of: 64}}",
       "r.yaml:1:37: model.options.width: expected a number, a string, a bool, "
       "or a list of these, found a map"},
      {"{width: }",
       "r.yaml:1:30: model.options.width: expected a number, a string, a bool, "
       "or a list of these, found nothing"},
      {"{width: 64, tags: [[a]]}",
       "r.yaml:1:48: model.options.tags: expected a number, a string, or a "
       "bool, found a list"},
      {"{width: 64, width: 32}",
       "r.yaml:1:41: model.options.width: this key is repeated. It is already "
       "set in line 1"},
      {"64", "r.yaml:1:29: model.options: expected a map, found the number 64"},
      {"{width: 64, scale: 13}", "r.yaml:1:29: model.options: 13 is no scale"}};
  for (const auto& [options, message] : cases) {
    EXPECT_EQ(bag_refusal(with_options(options)), message) << options;
  }
}

TEST(OwnModel, RefusesWhatDoesNotFitTheRestOfTheRecipe) {
  EXPECT_EQ(
      bag_refusal("model: {type: bag}\ndata: {paths: [text.txt]}\n"),
      "r.yaml:1:15: model.type: model.options.width is required but missing");
  EXPECT_EQ(
      bag_refusal(kBag, {"model.options.width=7.5"}),
      "override model.options.width=7.5: model.options.width: expected an "
      "integer, found the number 7.5");
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>([] {
        read_bag_recipe(kBag, {"model.options.width=7", "mesh.tp=2"}, 2);
      }),
      "override model.options.width=7: model.options.width: mesh.tp does not "
      "divide it");
  EXPECT_EQ(
      bag_refusal(kBag, {"model.options.tokens=200"}),
      "r.yaml:3:12: model.options: 200 is smaller than the vocabulary of "
      "data.tokenizer=byte, 256");
  EXPECT_EQ(
      bag_refusal(kBag, {"data.type=digits"}),
      "override data.type=digits: data.type: model.type=bag is a model for "
      "language: it needs data.type=text or tokens, not digits");
  EXPECT_EQ(
      bag_refusal(kBag, {"model.dim=64"}),
      "override model.dim=64: model.dim: does not apply if model.type is bag; "
      "it applies if model.type is llama, gpt2, moe, vit");
  EXPECT_EQ(
      bag_refusal(kBag, {"model.options.width.of=64"}),
      "override model.options.width.of=64: model.options.width.of: unknown "
      "key; model.options.width is not a section; a recipe has name, device, "
      "seed, products, cost_model, output_dir, mesh, model, tp, ddp, fsdp, "
      "comm, elastic, data, train, lora, optimizer, lr_schedule, ema, eval, "
      "checkpoint, "
      "integrity_check, straggler_detection, log, trace, links, "
      "communication_budget");
}

TEST(OwnModel, IsRefusedWhereItIsNotLinkedIn) {
  EXPECT_EQ(
      fixtures::message_of<mesh::UsageError>(
          [] { train::parse_recipe(kBag, "r.yaml"); }),
      "r.yaml:2:9: model.type: expected one of llama, gpt2, moe, vit, mlp, "
      "found bag");
  EXPECT_EQ(
      bag_refusal(kBag, {"model.type=bug"}),
      "override model.type=bug: model.type: expected one of llama, gpt2, moe, "
      "vit, mlp, bag, found bug; did you mean bag?");
  EXPECT_EQ(
      bag_refusal(fixtures::min_and(""), {"model.options.width=3"}),
      "override model.options.width=3: model.options: does not apply if "
      "model.type is llama; it applies if model.type is a type that the "
      "program registers");
  EXPECT_EQ(
      bag_refusal(fixtures::min_and(""), {"model.options={}"}),
      "override model.options={}: model.options: does not apply if model.type "
      "is llama; it applies if model.type is a type that the program "
      "registers");
}

std::string types_refusal(std::vector<models::OwnModel<BagConfig>> models) {
  config::ModelTypes types;
  for (const auto& model : models) {
    types.push_back(models::model_type(model));
  }
  return fixtures::message_of<mesh::UsageError>(
      [&] { models::check_model_types(types); });
}

TEST(OwnModel, TypesAreCheckedBeforeAnythingIsRead) {
  EXPECT_EQ(types_refusal({bag()}), "");
  EXPECT_EQ(
      types_refusal({bag(), bag()}),
      "the model type \"bag\" that is linked in is registered twice");
  auto other = bag();
  other.name = "llama";
  EXPECT_EQ(
      types_refusal({other}),
      "the model type \"llama\" that is linked in has the same name as a "
      "built-in model type. Rename it");
  for (const auto* name : {"", "my model", "my.model", "7b"}) {
    other.name = name;
    EXPECT_THAT(
        types_refusal({other}),
        HasSubstr("has an invalid name; use only letters, digits and _"));
  }
  other = bag();
  other.plan = nullptr;
  EXPECT_EQ(
      types_refusal({other}),
      "the model type \"bag\" that is linked in must set all of title, config, "
      "outputs, make and plan");
}

TEST(OwnModel, StepsAreEstimated) {
  const auto recipe =
      read_bag_recipe(kBag, {"mesh={dp: 2, tp: 2}"}, /*world_size=*/4);
  const auto estimate = estimate_step(recipe);
  EXPECT_EQ(estimate.parameter_count, 256 * 64 + 64 * 256 + 256);
  EXPECT_EQ(estimate.memory.parameters, 4 * (256 * 32 + 32 * 256 + 256));
  EXPECT_GT(estimate.collective_count(), 0);
}

} // namespace
} // namespace weft::cli
