// A trained model has the same loss and the same continuations on every mesh.
// Ranks are threads; inference_test.cpp has the programs on some meshes.

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "inference/evaluate.h"
#include "inference/generator.h"
#include "inference/inference_model.h"
#include "inference/prompts.h"
#include "tests/integration/training.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"
#include "train/run.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

using Words = std::vector<std::string>;
using Tokens = std::vector<std::vector<int64_t>>;

/// Sizes that most meshes do not divide.
constexpr const char* kUneven = R"(name: uneven
mesh: {dp: -1, tp: 1}
model: {dim: 48, layers: 2, heads: 6, kv_heads: 6, ffn_dim: 152,
        vocab_size: 331}
data: {sequence_length: 40}
train: {steps: 4, global_batch_size: 12, micro_batch_size: 2}
eval: {batches: 0}
optimizer: {lr: 1.0e-2}
)";

class InferenceMeshes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TempFolder>();
    auto recipe = recipe_with({});
    train::validate(recipe, 1);
    test::run_ranks(1, [&](test::RankContext& self) {
      train::run_training(recipe, self.world, /*fresh=*/false);
    });
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path_of(const std::string& name) {
    return (folder_->path() / name).string();
  }

  static config::Recipe recipe_with(Words overrides) {
    overrides.push_back("data.paths=[" + corpus_path() + "]");
    overrides.push_back("output_dir=" + path_of("run"));
    return train::parse_recipe(kUneven, "test.yaml", overrides);
  }

  /// 13 windows and a rest: batches of 2 leave replicas with one, or none.
  static std::string token_file() {
    const auto path = path_of("tokens.bin");
    std::ifstream text(corpus_path(), std::ios::binary);
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 13 * 40 + 1 + 17; ++i) {
      file.put(static_cast<char>(text.get()));
      file.put(0);
    }
    return path;
  }

  static inference::Evaluation evaluation(int ranks, const Words& overrides) {
    auto recipe = recipe_with(overrides);
    inference::validate_for_inference(recipe, ranks);
    const auto samples = inference::token_windows(recipe, token_file());
    inference::Evaluation result;
    test::run_ranks(ranks, [&](test::RankContext& self) {
      const auto mesh = inference::make_inference_mesh(recipe, self.world);
      const auto model =
          inference::load_model(recipe, mesh, "", base::Logger());
      const auto own = inference::evaluate(
          *model, mesh, samples, recipe.train.micro_batch_size, base::Logger());
      if (self.rank == ranks - 1) {
        result = own;
      }
    });
    return result;
  }

  static Tokens continuations(
      int ranks,
      const Words& overrides,
      bool use_cache = true,
      uint64_t seed = 11) {
    const Tokens prompts = {{105, 110, 116, 32, 118}, {120}}; // "int v", "x"
    const inference::GenerationOptions options{
        .sampling = {.top_k = 40, .seed = seed},
        .max_new_tokens = 60,
        .use_cache = use_cache};
    auto recipe = recipe_with(overrides);
    inference::validate_for_inference(recipe, ranks);
    recipe = inference::recipe_to_generate(recipe, 65);
    Tokens result;
    test::run_ranks(ranks, [&](test::RankContext& self) {
      const auto mesh = inference::make_inference_mesh(recipe, self.world);
      const auto model =
          inference::load_model(recipe, mesh, "", base::Logger());
      const auto all = inference::gather_continuations(
          mesh,
          inference::generate(
              *model,
              mesh,
              prompts,
              /*num_samples=*/2,
              options,
              [](const auto& /*sample*/) {}));
      for (const auto& sample : all) {
        if (self.rank == ranks - 1) {
          result.push_back(sample.tokens);
        }
      }
    });
    return result;
  }

  static inline std::unique_ptr<test::TempFolder> folder_;
};

/// Ranks and what the recipe is told. A size of shards that does not divide the
/// ranks becomes their number.
const std::vector<std::pair<int, Words>>& meshes() {
  static const std::vector<std::pair<int, Words>> all = {
      {2, {"mesh.tp=2"}},
      {3, {"mesh.tp=3"}},
      {2, {"mesh.tp=1"}},
      {3, {"mesh.tp=1"}},
      {4, {"mesh.tp=2"}},
      {4, {"mesh.dp_shard=2"}},
      {4, {"mesh.tp=2", "mesh.dp_shard=2"}},
      {1, {"mesh.dp_shard=4"}},
      {3, {"mesh.dp_shard=2"}}};
  return all;
}

TEST_F(InferenceMeshes, HaveTheSameLoss) {
  const auto one = evaluation(1, {});
  EXPECT_EQ(one.targets, 13 * 40);
  EXPECT_GT(one.loss, 1);
  EXPECT_LT(one.loss, 5.5); // ln 331 is 5.8
  for (const auto& [ranks, overrides] : meshes()) {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    EXPECT_NEAR(evaluation(ranks, overrides).loss, one.loss, 2e-5 * one.loss)
        << ranks;
  }
  // However the batches are cut.
  EXPECT_NEAR(
      evaluation(1, {"train.micro_batch_size=5"}).loss,
      one.loss,
      2e-5 * one.loss);
  EXPECT_EQ(
      evaluation(2, {"mesh.dp_shard=2", "train.dtype=bfloat16"}).loss,
      evaluation(2, {"train.dtype=bfloat16"}).loss);
}

TEST_F(InferenceMeshes, HaveTheSameContinuations) {
  const auto expected = continuations(1, {});
  ASSERT_EQ(expected.size(), 4);
  EXPECT_EQ(expected[0].size(), 60);
  for (const auto& [ranks, overrides] : meshes()) {
    SCOPED_TRACE(::testing::PrintToString(overrides));
    EXPECT_EQ(continuations(ranks, overrides), expected) << ranks;
  }
  EXPECT_EQ(continuations(1, {}, /*use_cache=*/false), expected);
  EXPECT_EQ(
      continuations(2, {"mesh.dp_shard=2"}, /*use_cache=*/false), expected);
  EXPECT_NE(continuations(1, {}, /*use_cache=*/true, /*seed=*/12), expected);
}

} // namespace
} // namespace weft::integration
