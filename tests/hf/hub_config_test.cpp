// config.json and model.from: what is read, what is refused.

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hf/config_json.h"
#include "mesh/error/error.h"
#include "tests/hf/hub_folder.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::hf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

Json llama_json() {
  return {
      {"model_type", "llama"},
      {"architectures", {"LlamaForCausalLM"}},
      {"hidden_size", 64},
      {"intermediate_size", 152},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 8},
      {"num_key_value_heads", 2},
      {"max_position_embeddings", 128},
      {"rms_norm_eps", 1e-6},
      {"vocab_size", 331}};
}

Json gpt2_json() {
  return {
      {"model_type", "gpt2"},
      {"n_embd", 48},
      {"n_layer", 2},
      {"n_head", 4},
      {"n_positions", 40},
      {"vocab_size", 331}};
}

config::ModelConfig model_of(const Json& json) {
  return parse_config(json.dump(), "config.json").model;
}

std::string refusal_of(Json json, const Json& more) {
  json.update(more);
  return fixtures::message_of<mesh::UsageError>([&] { model_of(json); });
}

TEST(HubConfig, OfALlamaIsOurs) {
  const auto model = model_of(llama_json());
  EXPECT_EQ(model.type, "llama");
  EXPECT_EQ(model.dim, 64);
  EXPECT_EQ(model.ffn_dim, 152);
  EXPECT_EQ(model.layers, 3);
  EXPECT_EQ(model.heads, 8);
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.vocab_size, 331);
  EXPECT_EQ(model.norm_eps, 1e-6);
  EXPECT_EQ(model.rope_theta, 10000.0);
  EXPECT_FALSE(model.tie_embeddings);
  EXPECT_EQ(model.rope_scaling.rope_type, config::RopeType::kNone);
  auto json = llama_json();
  json["num_key_value_heads"] = nullptr;
  json["tie_word_embeddings"] = true;
  json["head_dim"] = 8;
  EXPECT_EQ(model_of(json).kv_heads, 8);
  EXPECT_TRUE(model_of(json).tie_embeddings);
}

TEST(HubConfig, RopeIsReadInBothForms) {
  const Json scaling{
      {"factor", 8.0},
      {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0},
      {"original_max_position_embeddings", 32}};
  auto before = llama_json();
  before["rope_theta"] = 500000.0;
  before["rope_scaling"] = scaling;
  before["rope_scaling"]["rope_type"] = "llama3";
  auto today = llama_json();
  today["rope_parameters"] = before["rope_scaling"];
  today["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(model_of(before), model_of(today));
  EXPECT_EQ(model_of(today).rope_theta, 500000.0);
  EXPECT_EQ(model_of(today).rope_scaling.rope_type, config::RopeType::kLlama3);
  EXPECT_EQ(model_of(today).rope_scaling.original_max_position_embeddings, 32);
  auto linear = llama_json();
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(model_of(linear).rope_scaling.rope_type, config::RopeType::kLinear);
  EXPECT_EQ(model_of(linear).rope_scaling.factor, 2.0);
  auto plain = llama_json();
  plain["rope_theta"] = 20000;
  plain["rope_scaling"] = nullptr;
  EXPECT_EQ(model_of(plain).rope_theta, 20000.0);
}

TEST(HubConfig, OfAGpt2IsOurs) {
  const auto model = model_of(gpt2_json());
  EXPECT_EQ(model.type, "gpt2");
  EXPECT_EQ(model.dim, 48);
  EXPECT_EQ(model.ffn_dim, 192);
  EXPECT_EQ(model.max_position_embeddings, 40);
  EXPECT_EQ(model.norm_eps, 1e-5);
  auto json = gpt2_json();
  json["n_inner"] = 152;
  EXPECT_EQ(model_of(json).ffn_dim, 152);
}

TEST(HubConfig, WhatIsNotSupportedIsRefusedByName) {
  const std::vector<std::pair<Json, std::string>> llamas{
      {{{"model_type", "gemma"}},
       "model_type: \"gemma\" is not supported, expected one of: llama, gpt2, "
       "mixtral"},
      {{{"model_type", nullptr}}, "model_type"},
      {{{"architectures", {"LlamaForSequenceClassification"}}},
       "architectures: \"LlamaForSequenceClassification\" is not supported"},
      {{{"attention_bias", true}}, "attention_bias: got true"},
      {{{"mlp_bias", true}}, "mlp_bias: got true"},
      {{{"hidden_act", "gelu"}}, "hidden_act: \"gelu\" is not supported"},
      {{{"head_dim", 16}}, "head_dim: got 16"},
      {{{"sliding_window", 128}}, "sliding_window: attention to a window"},
      {{{"quantization_config", {{"bits", 4}}}},
       "quantization_config: a quantised model"},
      {{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}}}},
       "rope_scaling.rope_type: \"yarn\" is not supported"},
      {{{"rope_parameters", {{"full_attention", {{"rope_theta", 1.0}}}}}},
       "rope_parameters.full_attention"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {{{"rope_scaling", {{"rope_type", "llama3"}}}}, "rope_scaling.factor"},
      {{{"hidden_size", nullptr}}, "hidden_size: is required but missing"},
      {{{"hidden_size", "64"}}, "hidden_size: expected an integer"},
      {{{"rms_norm_eps", "x"}}, "rms_norm_eps: expected a number"}};
  for (const auto& [more, text] : llamas) {
    EXPECT_THAT(refusal_of(llama_json(), more), HasSubstr(text)) << more;
  }
  const std::vector<std::pair<Json, std::string>> gpt2s{
      {{{"scale_attn_by_inverse_layer_idx", true}},
       "scale_attn_by_inverse_layer_idx: got true"},
      {{{"reorder_and_upcast_attn", true}},
       "reorder_and_upcast_attn: got true"},
      {{{"add_cross_attention", true}}, "add_cross_attention: got true"},
      {{{"scale_attn_weights", false}}, "scale_attn_weights: got false"},
      {{{"tie_word_embeddings", false}}, "tie_word_embeddings: got false"},
      {{{"activation_function", "relu"}}, "activation_function: \"relu\""}};
  for (const auto& [more, text] : gpt2s) {
    EXPECT_THAT(refusal_of(gpt2_json(), more), HasSubstr(text)) << more;
  }
}

// Else they would be sizes of loops, divisors and shapes.
TEST(HubConfig, NumbersThatNoRecipeCouldHaveAreRefused) {
  auto mixtral = llama_json();
  mixtral["model_type"] = "mixtral";
  mixtral["architectures"] = {"MixtralForCausalLM"};
  mixtral["num_local_experts"] = 4;
  const auto most = std::numeric_limits<int64_t>::max();
  const std::vector<std::tuple<Json, Json, std::string>> cases{
      {llama_json(),
       {{"num_hidden_layers", 100'000'000}},
       "config.json: num_hidden_layers: expected at least 1"},
      {llama_json(), {{"num_hidden_layers", 0}}, "num_hidden_layers: expected"},
      {llama_json(), {{"rms_norm_eps", -1}}, "rms_norm_eps: expected"},
      {llama_json(),
       {{"num_attention_heads", 0}},
       "num_attention_heads: expected"},
      {llama_json(),
       {{"num_key_value_heads", 0}},
       "num_key_value_heads: expected"},
      {llama_json(), {{"hidden_size", -64}}, "hidden_size: expected"},
      {llama_json(), {{"vocab_size", most}}, "vocab_size: expected"},
      {llama_json(),
       {{"vocab_size", static_cast<uint64_t>(most) + 2}},
       "vocab_size: expected"},
      {llama_json(), {{"rope_theta", 0}}, "rope_theta: expected"},
      {llama_json(),
       {{"rope_scaling", {{"type", "linear"}, {"factor", -2}}}},
       "rope_scaling.factor: expected"},
      {mixtral, {{"num_local_experts", most}}, "num_local_experts: expected"},
      {mixtral,
       {{"num_local_experts", 1 << 24}},
       "3 layers of 16777216 experts each exceed the limit of 1000000 tensors"},
      {gpt2_json(),
       {{"n_layer", 100'000}},
       "exceed the limit of 1000000 tensors"},
      {gpt2_json(), {{"n_positions", 0}}, "n_positions: expected"},
      {gpt2_json(), {{"n_inner", -1}}, "n_inner: expected"}};
  EXPECT_EQ(model_of(mixtral).num_experts, 4);
  for (const auto& [json, more, text] : cases) {
    EXPECT_THAT(refusal_of(json, more), HasSubstr(text)) << more;
  }
}

TEST(HubConfig, NoJsonIsRefusedWithItsByte) {
  for (const std::string text :
       {"",
        "[]",
        "{",
        "{\"a\": 1, \"a\": 2}",
        "{\"a\": NaN}",
        "{\"a\": 1e999}",
        "\xff"}) {
    EXPECT_THAT(
        fixtures::message_of<mesh::UsageError>(
            [&] { parse_config(text, "x/config.json"); }),
        HasSubstr("x/config.json"))
        << text;
  }
  EXPECT_THAT(
      fixtures::message_of<mesh::UsageError>([&] {
        parse_config(
            std::string(1000, '[') + std::string(1000, ']'), "config.json");
      }),
      HasSubstr("config.json"));
}

std::string recipe_refusal(const std::string& text, int64_t ranks = 1) {
  return fixtures::message_of<mesh::UsageError>([&] {
    auto recipe = train::parse_recipe(text, "r.yaml");
    train::validate(recipe, ranks);
  });
}

TEST(ModelFrom, FillsTheModelOfARecipe) {
  const auto folder = stored_hub_folder("llama_tied");
  auto recipe =
      train::parse_recipe(hub_recipe(folder, 1, 1) + "name: x\n", "r.yaml");
  EXPECT_EQ(recipe.model.dim, 24);
  EXPECT_EQ(recipe.model.vocab_size, 331);
  EXPECT_TRUE(recipe.model.tie_embeddings);
  EXPECT_EQ(recipe.model.rope_scaling.rope_type, config::RopeType::kLlama3);
  EXPECT_EQ(recipe.model.rope_scaling.factor, 4.0);
  // And a fault that follows names the folder's file.
  EXPECT_THAT(
      recipe_refusal(hub_recipe(folder, 1, 5), 5),
      AllOf(
          HasSubstr("config.json (num_attention_heads): model.heads"),
          HasSubstr("6 is not divisible by mesh.tp=5")));
}

TEST(ModelFrom, KeysMaySayTheSameAndNothingElse) {
  const auto folder = stored_hub_folder("gpt2").string();
  const auto with = [&](const std::string& keys) {
    return "model: {from: " + folder + ", " + keys +
           "}\ndata: {paths: [t.txt], sequence_length: 40}\nmesh: {dp: 1}\n";
  };
  EXPECT_EQ(recipe_refusal(with("type: gpt2, dim: 12, layers: 1")), "");
  EXPECT_EQ(recipe_refusal(with("dropout: 0.1, attention_dropout: 0.2")), "");
  EXPECT_EQ(recipe_refusal(with("max_position_embeddings: 0")), "");
  EXPECT_THAT(
      recipe_refusal(with("dim: 16")),
      AllOf(
          StartsWith("r.yaml:1:"),
          HasSubstr(": model.dim: got 16, but " + folder),
          HasSubstr("config.json (n_embd) has 12"),
          HasSubstr("r.yaml:1:15: model.from")));
  EXPECT_THAT(recipe_refusal(with("type: llama")), HasSubstr("model_type"));
  EXPECT_THAT(
      recipe_refusal(with("num_experts: 4")), HasSubstr("does not apply if"));
  EXPECT_THAT(
      recipe_refusal(with("dim: 12") + "checkpoint: {init_from: a}\n"),
      HasSubstr("checkpoint.init_from: cannot be combined with model.from"));
}

TEST(ModelFrom, ARunGoesOnWithoutItsFolder) {
  const fixtures::TempFolder temp;
  const auto folder = copy_hub_folder("mixtral", temp);
  auto recipe =
      train::parse_recipe(hub_recipe(folder, 1, 1) + "name: x\n", "r.yaml");
  train::validate(recipe, 1);
  const auto resolved = config::to_yaml(recipe);
  EXPECT_EQ(train::parse_recipe(resolved, "recipe.yaml"), recipe);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(train::parse_recipe(resolved, "recipe.yaml"), recipe);
  EXPECT_EQ(config::parse_stored_recipe(resolved, "recipe.yaml"), recipe);
  EXPECT_THAT(
      recipe_refusal(hub_recipe(folder, 1, 1)),
      AllOf(HasSubstr("model.from"), HasSubstr("there is no such folder")));
}

} // namespace
} // namespace weft::hf
