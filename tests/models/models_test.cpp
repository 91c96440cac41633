// GPT-2, Llama with scaled rotary frequencies and ViT against transformers
// (oracle/models.py); the MLP by hand.

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "models/gpt2.h"
#include "models/llama.h"
#include "models/mlp.h"
#include "models/rotary.h"
#include "models/vit.h"
#include "tests/models/formula.h"

namespace weft::models {
namespace {

// The formulas of oracle/models.py.
bool is_norm_weight(const std::string& name) {
  return name.ends_with(".weight") && (name.find("norm") != std::string::npos ||
                                       name.find(".ln_") != std::string::npos);
}

std::map<std::string, at::Tensor> fill_by_name(Model& model) {
  const at::NoGradGuard no_grad;
  model.to(at::kDouble);
  auto sorted = sorted_parameters(model);
  double position = 0;
  for (const auto& [name, parameter] : sorted) {
    const auto values =
        wave(parameter.numel(), position++).view(parameter.sizes());
    parameter.copy_(is_norm_weight(name) ? 1 + 0.1 * values : 0.4 * values);
  }
  return sorted;
}

const nlohmann::json stored_models() {
  std::ifstream file(WEFT_SOURCE_DIR "/tests/models/oracle/models.json");
  return nlohmann::json::parse(file);
}

at::Tensor oracle_tokens(int64_t shift) {
  return (at::arange(21) * 7919 + shift).remainder(29).view({3, 7});
}

void expect_near_relative(double here, double there, double scale) {
  constexpr double kTolerance = 1e-5;
  EXPECT_NEAR(here, there, kTolerance * scale);
}

// Logits, loss and every parameter's gradient as transformers has them.
void expect_as_stored(
    Model& model,
    const nlohmann::json& stored,
    const at::Tensor& input,
    const at::Tensor& targets) {
  const auto parameters = fill_by_name(model);
  const auto logits = model.forward(input);
  const auto expected =
      at::tensor(stored.at("logits").get<std::vector<double>>(), at::kDouble);
  ASSERT_EQ(logits.numel(), expected.numel());
  expect_near_relative(
      (logits.view(-1) - expected).norm().item<double>(),
      0,
      expected.norm().item<double>());
  const auto loss = torch::nn::functional::cross_entropy(
      logits.flatten(0, -2),
      targets.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  const auto stored_loss = stored.at("loss").get<double>();
  expect_near_relative(loss.item<double>(), stored_loss, stored_loss);
  loss.backward();
  ASSERT_EQ(parameters.size(), stored.at("gradients").size());
  for (const auto& [name, numbers] : stored.at("gradients").items()) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(parameters.contains(name));
    const auto grad = parameters.at(name).grad().flatten();
    const auto norm = numbers.at(0).get<double>();
    if (name.ends_with("k_proj.bias")) {
      // What is added to all keys changes no weight of attention: zero, but for
      // transformers' softmax in float.
      EXPECT_LT(norm, 1e-6);
      EXPECT_LT(grad.norm().item<double>(), 1e-12);
      continue;
    }
    expect_near_relative(grad.norm().item<double>(), norm, norm);
    expect_near_relative(
        grad.dot(wave(grad.numel(), 0.5)).item<double>(),
        numbers.at(1).get<double>(),
        norm * std::sqrt(static_cast<double>(grad.numel())));
  }
}

TEST(Models, Gpt2GivesWhatTransformersDoes) {
  Gpt2Config config;
  config.dim = 16;
  config.heads = 4;
  config.ffn_dim = 24;
  config.vocab_size = 29;
  config.max_position_embeddings = 9;
  Gpt2LMHeadModelImpl model(config);
  expect_as_stored(
      model, stored_models().at("gpt2"), oracle_tokens(0), oracle_tokens(3));
}

LlamaConfig small_llama() {
  LlamaConfig config;
  config.dim = 32;
  config.kv_heads = 2;
  config.ffn_dim = 24;
  config.vocab_size = 29;
  config.max_sequence_length = 7;
  return config;
}

RopeScaling small_llama3_scaling() {
  return {
      .type = RopeScaling::Type::kLlama3,
      .factor = 4,
      .original_max_position_embeddings = 64};
}

TEST(Models, LlamaWithScaledFrequenciesGivesWhatTransformersDoes) {
  const auto stored = stored_models();
  auto config = small_llama();
  config.rope_scaling = {.type = RopeScaling::Type::kLinear, .factor = 4};
  LlamaForCausalLMImpl linear(config);
  expect_as_stored(
      linear, stored.at("llama_linear"), oracle_tokens(0), oracle_tokens(3));
  config.rope_scaling = small_llama3_scaling();
  LlamaForCausalLMImpl llama3(config);
  expect_as_stored(
      llama3, stored.at("llama3"), oracle_tokens(0), oracle_tokens(3));
}

TEST(Models, VitGivesWhatTransformersDoes) {
  VitConfig config;
  config.image_size = 8;
  config.patch_size = 4;
  config.channels = 2;
  config.dim = 16;
  config.ffn_dim = 24;
  config.num_classes = 5;
  VitForImageClassificationImpl model(config);
  const auto pixels = wave(3 * 2 * 8 * 8, 0.25).view({3, 2, 8, 8});
  const auto targets = (at::arange(3) * 2).remainder(5);
  const auto stored = stored_models().at("vit");
  expect_as_stored(model, stored, pixels, targets);
}

TEST(Models, RotaryFrequenciesAreThoseOfTransformers) {
  const auto stored = stored_models().at("frequencies");
  const auto expect_same = [&](const char* name, const at::Tensor& here) {
    const auto there =
        at::tensor(stored.at(name).get<std::vector<double>>(), at::kDouble);
    ASSERT_EQ(here.sizes(), there.sizes()) << name;
    const auto error = ((here.to(at::kDouble) - there) / there).abs().max();
    EXPECT_LT(error.item<double>(), 1e-7) << name;
  };
  expect_same(
      "linear",
      rotary_frequencies(
          128, 10000.0, {.type = RopeScaling::Type::kLinear, .factor = 4}));
  expect_same(
      "llama3",
      rotary_frequencies(128, 500000.0, {.type = RopeScaling::Type::kLlama3}));
  expect_same(
      "llama3_small", rotary_frequencies(8, 10000.0, small_llama3_scaling()));
}

TEST(Models, MlpIsLinearsWithReluBetween) {
  MlpConfig config;
  config.image_size = 2;
  config.layers = 2;
  config.ffn_dim = 6;
  config.num_classes = 3;
  MlpClassifierImpl model(config);
  const auto all = fill_by_name(model);
  const auto pixels = wave(5 * 4, 0.1).view({5, 1, 2, 2});
  auto x = pixels.view({5, 4});
  for (const std::string layer : {"layers.0", "layers.1"}) {
    x = (x.matmul(all.at(layer + ".weight").t()) + all.at(layer + ".bias"))
            .clamp_min(0);
  }
  const auto expected =
      x.matmul(all.at("head.weight").t()) + all.at("head.bias");
  EXPECT_EQ(all.size(), 6);
  EXPECT_TRUE(at::allclose(model.forward(pixels), expected, 1e-12, 1e-12));
}

TEST(Models, DropoutIsOnlyForTraining) {
  Gpt2Config config;
  config.dropout = 0.5;
  Gpt2LMHeadModelImpl gpt2(config);
  const auto tokens = at::arange(12).view({2, 6});
  VitConfig vit_config;
  vit_config.dropout = 0.5;
  VitForImageClassificationImpl vit(vit_config);
  MlpConfig mlp_config;
  mlp_config.dropout = 0.5;
  MlpClassifierImpl mlp(mlp_config);
  const auto pixels = wave(128, 0).to(at::kFloat).view({2, 1, 8, 8});
  const std::pair<Model*, at::Tensor> cases[] = {
      {&gpt2, tokens}, {&vit, pixels}, {&mlp, pixels}};
  for (const auto& [model, input] : cases) {
    EXPECT_FALSE(at::equal(model->forward(input), model->forward(input)));
    model->eval();
    EXPECT_TRUE(at::equal(model->forward(input), model->forward(input)));
  }
}

} // namespace
} // namespace weft::models
