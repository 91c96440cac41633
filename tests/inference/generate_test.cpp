// Continuations: against transformers (oracle/generate.py), on every mesh.

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/scopes.h"
#include "inference/generator.h"
#include "inference/sampling.h"
#include "models/plans.h"
#include "tests/models/formula.h"
#include "tests/support/run_ranks.h"

namespace weft::inference {
namespace {

using TokenLists = std::vector<std::vector<int64_t>>;

nlohmann::json stored_generations() {
  std::ifstream file(WEFT_SOURCE_DIR "/tests/models/oracle/generate.json");
  return nlohmann::json::parse(file);
}

// The formulas of oracle/models.py, wherever the parameters lie.
void fill_to_generate(models::Model& model) {
  const at::NoGradGuard no_grad;
  const dtensor::ImplicitReplication whole;
  double position = 0;
  for (auto& [name, parameter] : models::sorted_parameters(model)) {
    const auto values =
        models::wave(parameter.numel(), position++).view(parameter.sizes());
    const bool is_norm =
        name.ends_with(".weight") && (name.find("norm") != std::string::npos ||
                                      name.find(".ln_") != std::string::npos);
    at::Tensor(parameter).copy_(is_norm ? 1 + 0.1 * values : 0.4 * values);
  }
  model.eval();
}

models::LlamaConfig generating_llama() {
  models::LlamaConfig config;
  config.dim = 32;
  config.kv_heads = 2;
  config.ffn_dim = 24;
  config.vocab_size = 29;
  config.max_sequence_length = 64;
  return config;
}

models::Gpt2Config generating_gpt2() {
  models::Gpt2Config config;
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
    const models::PlanOptions planned{
        .sequence_parallel = false, .size = dims.tp};
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
  expect_transformers<models::LlamaForCausalLMImpl>(
      "llama", generating_llama(), models::llama_plan, GetParam());
}

TEST_P(GenerateOnMeshes, Gpt2ContinuesAsTransformersDoes) {
  expect_transformers<models::Gpt2LMHeadModelImpl>(
      "gpt2", generating_gpt2(), models::gpt2_plan, GetParam());
}

// Samples in numbers that replicas share unevenly.
TEST_P(GenerateOnMeshes, ASeedGivesTheSameTokensOnEveryMesh) {
  const TokenLists prompts{{3, 17, 5, 11}, {28, 1}, {4}};
  GenerationOptions options{
      .sampling = {.temperature = 1.5, .top_k = 20, .top_p = 0.95, .seed = 7},
      .max_new_tokens = 40,
      .eos = {9}};
  const auto run = [&](MeshDims dims, int64_t num_samples) {
    return tokens_in(generated_on<models::LlamaForCausalLMImpl>(
        dims,
        generating_llama(),
        models::llama_plan,
        prompts,
        num_samples,
        options));
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
  const auto all = generated_on<models::LlamaForCausalLMImpl>(
      {4, 1},
      generating_llama(),
      models::llama_plan,
      {stored.at("prompts").at(0).get<std::vector<int64_t>>()},
      1,
      options);
  EXPECT_EQ(
      all.at(0).tokens,
      stored.at("llama").at("greedy").at(0).get<std::vector<int64_t>>());
}

} // namespace
} // namespace weft::inference
