// Continuations: against transformers (oracle/generate.py), on every mesh, and
// how they become text.

#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dtensor/deferred_init.h"
#include "dtensor/scopes.h"
#include "mesh/error.h"
#include "recipes/config/validate.h"
#include "recipes/generate/generator.h"
#include "recipes/generate/prompts.h"
#include "recipes/generate/sampling.h"
#include "recipes/generate/text_stream.h"
#include "recipes/models/gpt2_plan.h"
#include "recipes/models/llama_plan.h"
#include "tests/recipes/fixtures.h"
#include "tests/recipes/formula.h"
#include "tests/support/run_ranks.h"

namespace weft::recipes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using TokenLists = std::vector<std::vector<int64_t>>;

nlohmann::json stored_generations() {
  std::ifstream file(WEFT_SOURCE_DIR "/tests/recipes/oracle/generate.json");
  return nlohmann::json::parse(file);
}

// The formulas of oracle/models.py, wherever the parameters lie.
void fill_to_generate(Model& model) {
  const at::NoGradGuard no_grad;
  const dtensor::ImplicitReplication whole;
  double position = 0;
  for (auto& [name, parameter] : sorted_parameters(model)) {
    const auto values =
        wave(parameter.numel(), position++).view(parameter.sizes());
    const bool is_norm =
        name.ends_with(".weight") && (name.find("norm") != std::string::npos ||
                                      name.find(".ln_") != std::string::npos);
    at::Tensor(parameter).copy_(is_norm ? 1 + 0.1 * values : 0.4 * values);
  }
  model.eval();
}

LlamaConfig generating_llama() {
  LlamaConfig config;
  config.dim = 32;
  config.kv_heads = 2;
  config.ffn_dim = 24;
  config.vocab_size = 29;
  config.max_sequence_length = 64;
  return config;
}

Gpt2Config generating_gpt2() {
  Gpt2Config config;
  config.dim = 16;
  config.ffn_dim = 24;
  config.vocab_size = 29;
  config.max_position_embeddings = 64;
  return config;
}

struct MeshDims {
  int64_t dp;
  int64_t tp;
};

// What all ranks together make of `prompts`, as each of them sees it.
template <class ModelImpl, class Config, class Plan>
std::vector<Continuation> generated_on(
    MeshDims dims,
    const Config& config,
    Plan plan,
    const TokenLists& prompts,
    int64_t num_samples,
    const GenerationOptions& options) {
  std::vector<Continuation> result;
  const auto ranks = static_cast<int>(dims.dp * dims.tp);
  test::run_ranks(ranks, [&](test::RankContext& self) {
    const auto mesh = self.mesh({dims.dp, dims.tp}, {"dp", "tp"});
    std::shared_ptr<ModelImpl> model;
    {
      const dtensor::DeferredInit scope;
      model = std::make_shared<ModelImpl>(config);
    }
    const PlanOptions planned{.sequence_parallel = false, .size = dims.tp};
    tp::parallelize_module(*model, mesh["tp"], plan(planned, config));
    dtensor::materialize(*model, /*seed=*/1);
    fill_to_generate(*model);
    size_t heard = 0;
    const auto own =
        generate(*model, mesh, prompts, num_samples, options, [&](const auto&) {
          ++heard;
        });
    size_t made = 0;
    for (const auto& each : own) {
      made += each.tokens.size();
    }
    EXPECT_EQ(heard, made);
    const auto all = gather_continuations(mesh, own);
    ASSERT_EQ(all.size(), prompts.size() * static_cast<size_t>(num_samples));
    if (self.rank == ranks - 1) {
      result = all;
    }
  });
  return result;
}

TokenLists tokens_in(const std::vector<Continuation>& all) {
  TokenLists lists;
  for (const auto& each : all) {
    lists.push_back(each.tokens);
  }
  return lists;
}

template <class ModelImpl, class Config, class Plan>
void expect_transformers(
    const std::string& name,
    const Config& config,
    Plan plan,
    MeshDims dims) {
  const auto stored = stored_generations();
  const auto prompts = stored.at("prompts").get<TokenLists>();
  const auto& expected = stored.at(name);
  GenerationOptions options{
      .sampling = {.temperature = 0}, .max_new_tokens = 24};
  for (const bool use_cache : {true, false}) {
    options.use_cache = use_cache;
    const auto all =
        generated_on<ModelImpl>(dims, config, plan, prompts, 1, options);
    EXPECT_EQ(tokens_in(all), expected.at("greedy").get<TokenLists>());
    EXPECT_FALSE(all.front().ended);
  }
  options.eos = {expected.at("eos").get<int64_t>()};
  const auto ended = generated_on<ModelImpl>(
      dims, config, plan, {prompts.front()}, 3, options);
  for (const auto& each : ended) {
    EXPECT_EQ(each.tokens, expected.at("ended").get<std::vector<int64_t>>());
    EXPECT_TRUE(each.ended);
  }
}

class GenerateOnMeshes : public ::testing::TestWithParam<MeshDims> {};

TEST_P(GenerateOnMeshes, LlamaContinuesAsTransformersDoes) {
  expect_transformers<LlamaForCausalLMImpl>(
      "llama", generating_llama(), llama_plan, GetParam());
}

TEST_P(GenerateOnMeshes, Gpt2ContinuesAsTransformersDoes) {
  expect_transformers<Gpt2LMHeadModelImpl>(
      "gpt2", generating_gpt2(), gpt2_plan, GetParam());
}

// Samples in numbers that replicas share unevenly.
TEST_P(GenerateOnMeshes, ASeedGivesTheSameTokensOnEveryMesh) {
  const TokenLists prompts{{3, 17, 5, 11}, {28, 1}, {4}};
  GenerationOptions options{
      .sampling = {.temperature = 1.5, .top_k = 20, .top_p = 0.95, .seed = 7},
      .max_new_tokens = 40,
      .eos = {9}};
  const auto run = [&](MeshDims dims, int64_t num_samples) {
    return tokens_in(generated_on<LlamaForCausalLMImpl>(
        dims, generating_llama(), llama_plan, prompts, num_samples, options));
  };
  const auto expected = run({1, 1}, 3);
  EXPECT_EQ(run(GetParam(), 3), expected);
  // They are not all alike, nor those of another seed.
  EXPECT_NE(expected[0], expected[1]);
  options.sampling.seed = 8;
  EXPECT_NE(run(GetParam(), 3), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    GenerateOnMeshes,
    ::testing::Values(
        MeshDims{1, 1},
        MeshDims{1, 2},
        MeshDims{1, 4},
        MeshDims{2, 1},
        MeshDims{3, 1},
        MeshDims{2, 2}),
    [](const auto& info) {
      return "Dp" + std::to_string(info.param.dp) + "Tp" +
             std::to_string(info.param.tp);
    });

// More replicas than samples.
TEST(Generate, ReplicasWithoutASampleWait) {
  GenerationOptions options{
      .sampling = {.temperature = 0}, .max_new_tokens = 24};
  const auto stored = stored_generations();
  const auto all = generated_on<LlamaForCausalLMImpl>(
      {4, 1},
      generating_llama(),
      llama_plan,
      {stored.at("prompts").at(0).get<std::vector<int64_t>>()},
      1,
      options);
  EXPECT_EQ(
      all.at(0).tokens,
      stored.at("llama").at("greedy").at(0).get<std::vector<int64_t>>());
}

// ---- sampling ---------------------------------------------------------------

TEST(Sampling, WarpsLogitsAsTransformersDoes) {
  const auto stored = stored_generations().at("warped");
  const auto logits =
      at::tensor(stored.at("logits").get<std::vector<double>>(), at::kDouble);
  for (const auto& each : stored.at("cases")) {
    SCOPED_TRACE(each.at("top_k").dump() + " " + each.at("top_p").dump());
    const auto warped = warp_logits(
        logits,
        {.temperature = each.at("temperature"),
         .top_k = each.at("top_k"),
         .top_p = each.at("top_p")});
    const auto& scores = each.at("scores");
    ASSERT_EQ(warped.numel(), static_cast<int64_t>(scores.size()));
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto here = warped[static_cast<int64_t>(i)].item<double>();
      ASSERT_EQ(std::isinf(here), scores[i].is_null()) << i;
      if (!scores[i].is_null()) {
        EXPECT_NEAR(here, scores[i].get<double>(), 1e-6);
      }
    }
  }
}

TEST(Sampling, TokensComeAsOftenAsTheirProbabilities) {
  const auto logits = at::tensor({0.0, 1.0, -1.0, 2.0, 0.5}, at::kFloat);
  constexpr int64_t kDraws = 20000;
  std::vector<double> counts(5);
  for (int64_t i = 0; i < kDraws; ++i) {
    ++counts[static_cast<size_t>(
        choose_token(logits, {.top_k = 4}, i % 50, i / 50))];
  }
  const auto expected = warp_logits(logits, {.top_k = 4}).softmax(-1);
  EXPECT_EQ(counts[2], 0);
  for (int64_t token = 0; token < 5; ++token) {
    const auto p = expected[token].item<double>();
    EXPECT_NEAR(
        counts[static_cast<size_t>(token)],
        p * kDraws,
        4 * std::sqrt(p * (1 - p) * kDraws) + 1e-9);
  }
}

TEST(Sampling, NumbersBelongToSeedSampleAndPosition) {
  const double number = sampling_number(1, 2, 3);
  EXPECT_EQ(sampling_number(1, 2, 3), number);
  EXPECT_GE(number, 0);
  EXPECT_LT(number, 1);
  EXPECT_NE(sampling_number(2, 2, 3), number);
  EXPECT_NE(sampling_number(1, 3, 3), number);
  EXPECT_NE(sampling_number(1, 2, 4), number);
}

TEST(Sampling, TemperatureZeroAndOneTokenAreGreedy) {
  const auto logits = wave(50, 0.7, at::kFloat);
  const auto likeliest = logits.argmax().item<int64_t>();
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(choose_token(logits, {.temperature = 0}, 0, i), likeliest);
    EXPECT_EQ(choose_token(logits, {.top_k = 1}, 0, i), likeliest);
    EXPECT_EQ(choose_token(logits, {.top_p = 0}, 0, i), likeliest);
  }
}

// ---- text -------------------------------------------------------------------

std::vector<int64_t> bytes_of(const std::string& text) {
  std::vector<int64_t> tokens;
  for (const char c : text) {
    tokens.push_back(static_cast<unsigned char>(c));
  }
  return tokens;
}

TEST(TextStream, GivesWholeCharactersAsTheyCome) {
  const auto tokenizer = open_tokenizer("byte");
  TextStream stream(tokenizer.get(), bytes_of("before"));
  std::vector<std::string> parts;
  for (const int64_t token : bytes_of("a\xC3\xA9\xE2\x82\xAC")) {
    parts.push_back(stream.add(token));
  }
  EXPECT_THAT(parts, ElementsAre("a", "", "\xC3\xA9", "", "", "\xE2\x82\xAC"));
  EXPECT_EQ(stream.add(0xE2), "");
  EXPECT_EQ(stream.finish(), "\xE2");
}

TEST(TextStream, ForgetsWhatIsLongAgoAndNothingElse) {
  const auto tokenizer = open_tokenizer("byte");
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += std::to_string(i * 7919) + "\xC3\xA9";
  }
  const auto tokens = bytes_of(text);
  EXPECT_EQ(text_after(tokenizer.get(), tokens, tokens), text);
  EXPECT_EQ(
      text_after(nullptr, tokens, std::vector<int64_t>{5, 17, 2}), "5 17 2");
  // Models may have more tokens than their tokenizer.
  EXPECT_EQ(
      text_after(tokenizer.get(), {}, std::vector<int64_t>{65, 300, 66}), "AB");
}

TEST(TextStream, KnowsUnfinishedCharacters) {
  EXPECT_EQ(unfinished_bytes(""), 0);
  EXPECT_EQ(unfinished_bytes("abc"), 0);
  EXPECT_EQ(unfinished_bytes("a\xC3"), 1);
  EXPECT_EQ(unfinished_bytes("a\xE2\x82"), 2);
  EXPECT_EQ(unfinished_bytes("\xF0\x9F\x98"), 3);
  EXPECT_EQ(unfinished_bytes("\xF0\x9F\x98\x80"), 0);
  // Not UTF-8: nothing to wait for.
  EXPECT_EQ(unfinished_bytes("\x80\x80\x80\x80"), 0);
}

// ---- prompts ----------------------------------------------------------------

Recipe generating_recipe(const std::string& more) {
  auto recipe = parse_recipe(least_and(more), "test.yaml");
  validate(recipe, 1);
  return recipe;
}

TEST(Prompts, BecomeTokens) {
  const auto recipe = generating_recipe("");
  const auto tokenizer = find_tokenizer(recipe, std::nullopt);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(
      prompt_tokens(recipe, {.texts = {"ab", "c"}}, tokenizer.get()),
      (TokenLists{{97, 98}, {99}}));
  EXPECT_EQ(
      prompt_tokens(
          recipe, {.tokens = std::vector<int64_t>{1, 2}}, tokenizer.get()),
      (TokenLists{{1, 2}}));
  const TempFolder folder;
  const auto file = folder.write("prompt.txt", "xy");
  EXPECT_EQ(
      prompt_tokens(recipe, {.file = file}, tokenizer.get()),
      (TokenLists{{120, 121}}));
}

TEST(Prompts, AreRefusedWithTheReason) {
  const auto recipe = generating_recipe("");
  const auto tokenizer = find_tokenizer(recipe, std::nullopt);
  const auto refusal = [&](const PromptWords& words, bool with = true) {
    return message_of<mesh::UsageError>([&] {
      prompt_tokens(recipe, words, with ? tokenizer.get() : nullptr);
    });
  };
  EXPECT_THAT(refusal({}), HasSubstr("there is no prompt"));
  EXPECT_THAT(
      refusal({.texts = {"a"}, .tokens = std::vector<int64_t>{1}}),
      HasSubstr("several kinds"));
  EXPECT_THAT(refusal({.texts = {""}}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(refusal({.texts = {"a"}}, false), HasSubstr("needs a tokenizer"));
  EXPECT_THAT(
      refusal({.tokens = std::vector<int64_t>{1, 256}}),
      HasSubstr("prompt token 1 is 256, but the model has 256 tokens"));
  EXPECT_THAT(
      refusal({.tokens = std::vector<int64_t>{-1}}),
      HasSubstr("prompt token 0 is -1"));
  EXPECT_THAT(refusal({.file = "/nowhere"}), HasSubstr("is not a file"));
}

TEST(Prompts, ModelsWithPositionsHaveSoMuchRoom) {
  const auto gpt2 = parse_recipe(
      "model: {type: gpt2, dim: 64, layers: 2, heads: 4, ffn_dim: 128,\n"
      "  max_position_embeddings: 20}\n"
      "data: {paths: [text.txt], sequence_length: 16}\n",
      "test.yaml");
  const TokenLists prompts{{1, 2}, std::vector<int64_t>(15, 3)};
  EXPECT_EQ(room_for_new_tokens(gpt2, prompts, 5, 128), 5);
  EXPECT_EQ(room_for_new_tokens(gpt2, prompts, std::nullopt, 128), 5);
  const auto refusal = [&](const TokenLists& given, int64_t wanted) {
    return message_of<mesh::UsageError>(
        [&] { room_for_new_tokens(gpt2, given, wanted, 128); });
  };
  EXPECT_THAT(
      refusal(prompts, 6),
      HasSubstr("15 tokens and 6 new ones are more than the model's 20 "
                "positions. --max-new-tokens can be 5."));
  EXPECT_THAT(
      refusal({std::vector<int64_t>(20, 3)}, 1),
      HasSubstr("Give a shorter prompt."));
  EXPECT_EQ(recipe_to_generate(gpt2, 20).data.sequence_length, 16);
  // Rotary positions go on.
  const auto llama = generating_recipe("");
  EXPECT_EQ(room_for_new_tokens(llama, prompts, 1000, 128), 1000);
  const auto longer = recipe_to_generate(llama, 1015);
  EXPECT_EQ(longer.data.sequence_length, 1015);
  EXPECT_FALSE(longer.tp.sequence_parallel);
}

TEST(Prompts, TokenizersOfOtherModelsAreRefused) {
  auto recipe = generating_recipe("");
  recipe.model.vocab_size = 100;
  EXPECT_THAT(
      message_of<mesh::UsageError>(
          [&] { find_tokenizer(recipe, std::nullopt); }),
      HasSubstr("is not the model's, which has 100 tokens"));
}

TEST(Prompts, EndTokensAreThoseOfTheModelsFolder) {
  const TempFolder folder;
  folder.write("generation_config.json", R"({"eos_token_id": [7, 9]})");
  folder.write("config.json", R"({"eos_token_id": 3})");
  auto recipe = generating_recipe("");
  EXPECT_THAT(end_tokens(recipe, nullptr), ElementsAre());
  recipe.model.from = folder.path();
  EXPECT_THAT(end_tokens(recipe, nullptr), ElementsAre(7, 9, 3));
  folder.write("config.json", "not JSON");
  EXPECT_THAT(end_tokens(recipe, nullptr), ElementsAre(7, 9));
}

} // namespace
} // namespace weft::recipes
