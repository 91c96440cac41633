// Every model, and what can be done with one, on many meshes: the losses and
// weights of one rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/integration/training.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

// Images take longer until their loss has fallen.
constexpr int64_t kLanguageSteps = 12;
constexpr int64_t kImageSteps = 20;

/// Dims of the mesh, dp and tp.
using MeshShape = std::pair<int64_t, int64_t>;

struct ModelCase {
  std::string name;
  std::function<void(config::Recipe&)> edit;
  /// The last loss is less than so much of the first.
  double falls_to = 0.9;
};

// Sizes that no number of ranks divides but for the heads, 6.
config::Recipe language_recipe(const std::string& corpus) {
  config::Recipe recipe;
  recipe.name = "models";
  recipe.seed = 7;
  recipe.model.dim = 48;
  recipe.model.layers = 2;
  recipe.model.heads = 6;
  recipe.model.kv_heads = 6;
  recipe.model.ffn_dim = 70;
  recipe.model.vocab_size = 257;
  recipe.data.paths = {corpus};
  recipe.data.sequence_length = 17;
  recipe.train.steps = kLanguageSteps;
  recipe.train.global_batch_size = 12;
  recipe.optimizer.lr = 3e-3;
  recipe.lr_schedule.warmup_steps = 3;
  recipe.eval.batches = 1;
  recipe.origins.source = "test";
  return recipe;
}

// The 16 patches and the class token divide among no number of ranks.
config::Recipe image_recipe(const std::string& digits) {
  auto recipe = language_recipe(digits);
  recipe.train.steps = kImageSteps;
  recipe.lr_schedule.warmup_steps = 5;
  recipe.model.type = "vit";
  recipe.data.type = config::DataType::kDigits;
  recipe.model.dropout = 0.1;
  return recipe;
}

config::Recipe on_mesh(config::Recipe recipe, const MeshShape& shape) {
  recipe.mesh = {shape.first, shape.second};
  // Twice accumulated.
  recipe.train.micro_batch_size =
      recipe.train.global_batch_size / (2 * shape.first);
  train::validate(recipe, shape.first * shape.second);
  return recipe;
}

std::vector<ModelCase> model_cases() {
  return {
      {"LlamaOneKeyHead", [](config::Recipe& r) { r.model.kv_heads = 1; }},
      {"Llama3",
       [](config::Recipe& r) {
         r.model.rope_scaling.rope_type = config::RopeType::kLlama3;
         r.model.rope_scaling.original_max_position_embeddings = 8;
       }},
      {"Gpt2",
       [](config::Recipe& r) {
         r.model.type = "gpt2";
         r.model.dropout = 0.2;
       }},
      {"Moe",
       [](config::Recipe& r) {
         r.model.type = "moe";
         r.model.num_experts = 4;
         r.model.router_aux_loss_coef = 0.1;
         r.model.router_z_loss_coef = 0.01;
       }},
      {"Objective",
       [](config::Recipe& r) {
         r.train.z_loss = 1e-2;
         r.train.label_smoothing = 0.1;
       }},
      {"Recomputed",
       [](config::Recipe& r) {
         r.model.attention_dropout = 0.2;
         r.train.activation_checkpoint = config::ActivationCheckpoint::kFull;
       }},
      {"Adapted",
       [](config::Recipe& r) {
         r.lora.rank = 4;
         r.lora.dropout = 0.2;
         r.lora.target_modules = {"model.layers.*.self_attn.*", "**.down_proj"};
         r.optimizer.lr = 1e-2;
       },
       0.97},
      {"AdaptedOneKeyHead",
       [](config::Recipe& r) {
         r.model.kv_heads = 1;
         r.lora.rank = 4;
         r.lora.target_modules = {"model.layers.*.self_attn.*"};
         r.optimizer.lr = 1e-2;
       },
       0.97},
  };
}

std::vector<ModelCase> image_cases() {
  return {
      {"Vit", [](config::Recipe& r) { r.model.attention_dropout = 0.1; }},
      {"VitWhole", [](config::Recipe& r) { r.tp.sequence_parallel = false; }},
      {"Mlp", [](config::Recipe& r) {
         r.model.type = "mlp";
         r.model.layers = 3;
         r.optimizer.lr = 2e-2;
       }}};
}

class Models
    : public ::testing::TestWithParam<std::tuple<ModelCase, MeshShape>> {
 protected:
  static void
  check(config::Recipe recipe, const ModelCase& model, MeshShape shape);
};

void Models::check(
    config::Recipe recipe,
    const ModelCase& model,
    MeshShape shape) {
  model.edit(recipe);
  const auto& expected = train_once(on_mesh(recipe, {1, 1}));
  ASSERT_EQ(expected.losses.size(), static_cast<size_t>(recipe.train.steps));
  EXPECT_LT(expected.losses.back(), model.falls_to * expected.losses.front());
  expect_same_training(integration::train(on_mesh(recipe, shape)), expected);
}

TEST_P(Models, TrainLikeOneRank) {
  const auto& [model, shape] = GetParam();
  check(language_recipe(corpus_path()), model, shape);
}

class ImageModels : public Models {};

TEST_P(ImageModels, TrainLikeOneRank) {
  const auto& [model, shape] = GetParam();
  check(image_recipe(digits_path()), model, shape);
}

std::string case_name(const std::tuple<ModelCase, MeshShape>& param) {
  const auto& shape = std::get<1>(param);
  return fmt::format(
      "{}Dp{}Tp{}", std::get<0>(param).name, shape.first, shape.second);
}

const auto kMeshes = ::testing::Values(
    MeshShape(2, 1),
    MeshShape(1, 2),
    MeshShape(2, 2),
    MeshShape(1, 3));

INSTANTIATE_TEST_SUITE_P(
    All,
    Models,
    ::testing::Combine(::testing::ValuesIn(model_cases()), kMeshes),
    [](const auto& info) { return case_name(info.param); });
INSTANTIATE_TEST_SUITE_P(
    All,
    ImageModels,
    ::testing::Combine(::testing::ValuesIn(image_cases()), kMeshes),
    [](const auto& info) { return case_name(info.param); });

// Recomputing changes no bit, dropout included.
TEST(Recomputing, ChangesNothingButMemory) {
  auto recipe = language_recipe(corpus_path());
  recipe.model.attention_dropout = 0.2;
  for (const auto& shape : {MeshShape(1, 1), MeshShape(2, 2)}) {
    SCOPED_TRACE(fmt::format("dp={} tp={}", shape.first, shape.second));
    const auto without = integration::train(on_mesh(recipe, shape));
    auto with = recipe;
    with.train.activation_checkpoint = config::ActivationCheckpoint::kSelective;
    with.train.activation_checkpoint_modules = {"model.layers.*.mlp"};
    EXPECT_EQ(integration::train(on_mesh(with, shape)).losses, without.losses);
    with.train.activation_checkpoint = config::ActivationCheckpoint::kFull;
    with.train.activation_checkpoint_modules = {};
    EXPECT_EQ(integration::train(on_mesh(with, shape)).losses, without.losses);
  }
}

// The order of the arithmetic within a layer is not a part of its result.
TEST(AsyncTp, ChangesNoBit) {
  auto recipe = language_recipe(corpus_path());
  recipe.tp.async_tp = config::AsyncTp::kOff;
  const auto off = integration::train(on_mesh(recipe, {2, 2}));
  recipe.tp.async_tp = config::AsyncTp::kOn;
  const auto on = integration::train(on_mesh(recipe, {2, 2}));
  EXPECT_EQ(on.losses, off.losses);
  for (const auto& [name, value] : off.final) {
    EXPECT_TRUE(at::equal(on.final.at(name), value)) << name;
  }
}

// bfloat16 is computed in; what is trained is float32.
TEST(Bfloat16, FollowsFloat32OnEveryMesh) {
  auto recipe = language_recipe(corpus_path());
  const auto exact = integration::train(on_mesh(recipe, {1, 1}));
  recipe.train.dtype = config::TrainDtype::kBFloat16;
  recipe.ddp.reduce_dtype = config::ReduceDtype::kFloat32;
  for (const auto& shape :
       {MeshShape(1, 1),
        MeshShape(2, 1),
        MeshShape(1, 2),
        MeshShape(2, 2),
        MeshShape(1, 3)}) {
    SCOPED_TRACE(fmt::format("dp={} tp={}", shape.first, shape.second));
    const auto low = integration::train(on_mesh(recipe, shape));
    ASSERT_EQ(low.losses.size(), exact.losses.size());
    for (size_t i = 0; i < low.losses.size(); ++i) {
      EXPECT_NEAR(low.losses[i], exact.losses[i], 2e-2 * exact.losses[i])
          << "step " << i + 1;
    }
    for (const auto& [name, value] : low.final) {
      EXPECT_EQ(value.scalar_type(), at::kFloat) << name;
      EXPECT_LT(relative_distance(value, exact.final.at(name)), 0.1) << name;
    }
  }
}

} // namespace
} // namespace weft::integration
