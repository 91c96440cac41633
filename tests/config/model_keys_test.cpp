#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/schema.h"
#include "mesh/error/error.h"
#include "tests/config/fixtures.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kGpt2 =
    "model: {type: gpt2, dim: 64, layers: 2, heads: 4, ffn_dim: 128}\n"
    "data: {paths: [text.txt]}\n";
constexpr std::string_view kMoe =
    "model: {type: moe, dim: 64, layers: 2, heads: 4, ffn_dim: 128, "
    "num_experts: 4}\n"
    "data: {paths: [text.txt]}\n";
constexpr std::string_view kVit =
    "model: {type: vit, dim: 64, layers: 2, heads: 4, ffn_dim: 128}\n"
    "data: {type: digits, paths: [digits.csv.gz]}\n";
constexpr std::string_view kMlp =
    "model: {type: mlp, layers: 2, ffn_dim: 128}\n"
    "data: {type: digits, paths: [digits.csv.gz]}\n";

Recipe resolved_text(
    std::string_view text,
    const std::vector<std::string>& overrides = {},
    int64_t world_size = 1) {
  Recipe recipe = train::parse_recipe(text, "r.yaml", overrides);
  train::validate(recipe, world_size);
  return recipe;
}

std::string whole_refusal(
    std::string_view text,
    const std::vector<std::string>& overrides,
    int64_t world_size = 1) {
  return fixtures::message_of<mesh::UsageError>(
      [&] { resolved_text(text, overrides, world_size); });
}

// Without the place and the key.
std::string model_refusal(
    std::string_view text,
    const std::vector<std::string>& overrides,
    int64_t world_size = 1) {
  const std::regex place(".*[ :][a-z_]+(\\.[a-z_]+)+: ");
  return std::regex_replace(
      whole_refusal(text, overrides, world_size), place, "");
}

TEST(ModelKeys, EveryTypeNeedsItsOwn) {
  for (const auto text : {kGpt2, kMoe, kVit, kMlp}) {
    EXPECT_EQ(model_refusal(text, {}), "") << text;
    const Recipe recipe = resolved_text(text);
    EXPECT_EQ(train::parse_recipe(to_yaml(recipe), "r.yaml"), recipe) << text;
  }
  EXPECT_EQ(
      whole_refusal("model: {type: vit, dim: 64, layers: 2, ffn_dim: 1}\n", {}),
      "r.yaml: model.heads: is required but missing");
  EXPECT_EQ(
      whole_refusal(fixtures::kMinRecipe, {"model.type=moe"}),
      "r.yaml: model.num_experts: is required but missing");
}

TEST(ModelKeys, RefusesThoseOfOtherTypes) {
  EXPECT_EQ(
      whole_refusal(kMlp, {"model.heads=4"}),
      "override model.heads=4: model.heads: does not apply if model.type is "
      "mlp; it applies if model.type is llama, gpt2, moe, vit");
  EXPECT_EQ(
      whole_refusal(fixtures::kMinRecipe, {"model.num_experts=4"}),
      "override model.num_experts=4: model.num_experts: does not apply if "
      "model.type is llama; it applies if model.type is moe");
  EXPECT_EQ(
      whole_refusal(kVit, {"data.sequence_length=64"}),
      "override data.sequence_length=64: data.sequence_length: does not apply "
      "if data.type is digits; it applies if data.type is text, tokens");
  const std::vector<std::pair<std::string_view, std::string>> others = {
      {kGpt2, "model.kv_heads=2"},
      {kGpt2, "model.tie_embeddings=true"},
      {kGpt2, "model.rope_theta=1"},
      {kGpt2, "model.rope_scaling.rope_type=linear"},
      {fixtures::kMinRecipe, "model.dropout=0.1"},
      {fixtures::kMinRecipe, "model.max_position_embeddings=512"},
      {fixtures::kMinRecipe, "model.image_size=8"},
      {kVit, "model.vocab_size=256"},
      {kVit, "model.kv_heads=4"},
      {kMlp, "model.dim=4"},
      {kMlp, "model.patch_size=2"},
      {kMlp, "model.attention_dropout=0"},
      {kMlp, "tp.sequence_parallel=true"},
      {kMoe, "model.dropout=0"}};
  for (const auto& [text, key] : others) {
    EXPECT_THAT(whole_refusal(text, {key}), HasSubstr("does not apply if"))
        << key;
  }
}

TEST(ModelKeys, WrittenRecipesHaveOnlyTheirOwn) {
  const std::string mlp = to_yaml(resolved_text(kMlp));
  EXPECT_THAT(mlp, HasSubstr("model:\n  type: mlp\n  layers: 2\n"));
  EXPECT_THAT(mlp, HasSubstr("  image_size: 8\n"));
  EXPECT_THAT(mlp, Not(HasSubstr("heads")));
  EXPECT_THAT(mlp, Not(HasSubstr("rope")));
  EXPECT_THAT(mlp, Not(HasSubstr("tokenizer")));
  const std::string llama = to_yaml(resolved_text(
      fixtures::kMinRecipe,
      {"model.rope_scaling={rope_type: llama3, factor: 32.0}"}));
  EXPECT_THAT(
      llama,
      HasSubstr("  rope_scaling:\n    rope_type: llama3\n    factor: 32.0\n"));
  EXPECT_EQ(resolved_text(llama).model.rope_scaling.factor, 32.0);
  EXPECT_THAT(llama, HasSubstr("\ntp:\n  sequence_parallel: true\n"));
}

TEST(ModelKeys, NestedSectionsAreReadStrictly) {
  EXPECT_EQ(
      whole_refusal(fixtures::kMinRecipe, {"model.rope_scaling=llama3"}),
      "override model.rope_scaling=llama3: model.rope_scaling: expected a map, "
      "found the string \"llama3\"");
  EXPECT_EQ(
      whole_refusal(fixtures::kMinRecipe, {"model.rope_scaling.type=linear"}),
      "override model.rope_scaling.type=linear: model.rope_scaling.type: "
      "unknown key; did you mean model.type?");
  EXPECT_EQ(
      whole_refusal(
          fixtures::kMinRecipe, {"model.rope_scaling.rope_type=yarn"}),
      "override model.rope_scaling.rope_type=yarn: "
      "model.rope_scaling.rope_type: expected one of none, linear, llama3, "
      "found yarn");
  EXPECT_EQ(
      model_refusal(
          fixtures::kMinRecipe,
          {"model.rope_scaling={rope_type: llama3, high_freq_factor: 1}"}),
      "1 is not greater than model.rope_scaling.low_freq_factor=1");
}

TEST(ModelKeys, DataFitsTheModel) {
  EXPECT_EQ(
      whole_refusal(kMlp, {"data.type=text"}),
      "override data.type=text: data.type: model.type=mlp is a model for "
      "images: it needs data.type=digits, not text");
  EXPECT_EQ(
      model_refusal(fixtures::kMinRecipe, {"data.type=digits"}),
      "model.type=llama is a model for language: it needs data.type=text or "
      "tokens, not digits");
  EXPECT_EQ(
      model_refusal(kVit, {"model.image_size=16"}),
      "got 16, but data.type=digits requires 8");
  EXPECT_EQ(
      model_refusal(kVit, {"model.channels=3"}),
      "got 3, but data.type=digits requires 1");
  EXPECT_EQ(
      model_refusal(kVit, {"model.num_classes=9"}),
      "9 is smaller than the number of digits, 10");
  EXPECT_EQ(model_refusal(kVit, {"model.num_classes=11"}), "");
}

TEST(ModelKeys, SizesFitEachOther) {
  EXPECT_EQ(
      model_refusal(kVit, {"model.patch_size=3"}),
      "model.image_size=8 is not divisible by 3; the patch size can be 1, 2, 4 "
      "or 8");
  EXPECT_EQ(
      model_refusal(kMoe, {"model.num_experts_per_tok=5"}),
      "5 is more than model.num_experts=4");
  EXPECT_EQ(
      model_refusal(kGpt2, {"model.max_position_embeddings=64"}),
      "64 is smaller than data.sequence_length=128");
  EXPECT_EQ(resolved_text(kGpt2).model.max_position_embeddings, 128);
  EXPECT_EQ(resolved_text(kGpt2).model.kv_heads, 0) << "not a key of gpt2";
  EXPECT_EQ(resolved_text(kMoe).model.kv_heads, 4);
  EXPECT_EQ(model_refusal(kGpt2, {"model.dim=60"}), "") << "heads of 15";
  EXPECT_EQ(
      model_refusal(kGpt2, {"mesh.tp=3"}, 3),
      "4 is not divisible by mesh.tp=3; with 4 heads mesh.tp can be 1, 2 or 4");
  EXPECT_EQ(model_refusal(kMlp, {"mesh.tp=3"}, 3), "");
}

TEST(ModelKeys, RecomputationNamesItsModules) {
  EXPECT_EQ(
      model_refusal(
          fixtures::kMinRecipe, {"train.activation_checkpoint=selective"}),
      "selective needs train.activation_checkpoint_modules, such as "
      "[\"model.layers.*.mlp\"]");
  EXPECT_EQ(
      model_refusal(
          fixtures::kMinRecipe,
          {"train.activation_checkpoint=full",
           "train.activation_checkpoint_modules=[x]"}),
      "requires train.activation_checkpoint=selective, but that key is full");
  EXPECT_EQ(
      model_refusal(
          fixtures::kMinRecipe,
          {"train.activation_checkpoint=selective",
           "train.activation_checkpoint_modules=['model.layers.*.mlp']"}),
      "");
}

TEST(ModelKeys, AdaptersNameTheirTargets) {
  EXPECT_EQ(
      model_refusal(fixtures::kMinRecipe, {"lora.rank=4"}),
      "got 4 without lora.target_modules. Set lora.target_modules to the "
      "Linear layers that get an adapter, such as "
      "[\"model.layers.*.self_attn.*\"]");
  const Recipe recipe = resolved_text(
      fixtures::kMinRecipe, {"lora={rank: 4, target_modules: ['*.q_proj']}"});
  EXPECT_EQ(recipe.lora.target_modules, (std::vector<std::string>{"*.q_proj"}));
  EXPECT_EQ(train::parse_recipe(to_yaml(recipe), "r.yaml"), recipe);
}

TEST(ModelKeys, ConditionsNameKeysWithChoices) {
  for (const Key& key : schema()) {
    if (key.only.key.empty()) {
      continue;
    }
    const Key* other = find_key(key.only.key);
    ASSERT_NE(other, nullptr) << key.path;
    for (const auto value : key.only.values) {
      EXPECT_THAT(allowed_choices(*other), ::testing::Contains(value))
          << key.path;
    }
  }
}

} // namespace
} // namespace weft::config
