// A run goes on where it was, on any other mesh. Ranks are threads;
// resume_test.cpp has the programs on some meshes.

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/integration/copy_run.h"
#include "tests/integration/training.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"
#include "train/run.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

constexpr int kAllSteps = 20;

/// 24 samples a step, so that 1, 2, 3 and 4 replicas divide them.
constexpr const char* kResumed = R"(name: resumed
model: {dim: 48, layers: 1, heads: 12, kv_heads: 12, ffn_dim: 96}
data: {sequence_length: 32}
train: {steps: 20, global_batch_size: 24}
optimizer: {lr: 1.0e-2}
eval: {every: 10, batches: 2}
checkpoint: {every: 10, keep: 0}
)";

struct ResumedMesh {
  int dp;
  int tp;
  int dp_shard = 1;
};

class ResumedMeshes : public ::testing::Test {
 protected:
  void run(const ResumedMesh& mesh, const std::string& output) const {
    const int replicas = mesh.dp * mesh.dp_shard;
    const std::vector<std::string> overrides = {
        "mesh.dp=" + std::to_string(mesh.dp),
        "mesh.tp=" + std::to_string(mesh.tp),
        "mesh.dp_shard=" + std::to_string(mesh.dp_shard),
        "train.micro_batch_size=" + std::to_string(24 / replicas / 2),
        "data.paths=[" + corpus_path() + "]",
        "output_dir=" + (folder_ / output).string()};
    auto recipe = train::parse_recipe(kResumed, "test.yaml", overrides);
    train::validate(recipe, replicas * mesh.tp);
    test::run_ranks(replicas * mesh.tp, [&](test::RankContext& self) {
      train::run_training(recipe, self.world, /*fresh=*/false);
    });
  }

  std::vector<nlohmann::json> metrics(const std::string& output) const {
    std::ifstream file(folder_ / output / "metrics.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  const test::TempFolder folder_;
};

TEST_F(ResumedMeshes, TrainAsTheMeshBeforeWould) {
  run({2, 2}, "straight");
  const auto expected = metrics("straight");
  ASSERT_EQ(expected.size(), kAllSteps);
  for (const ResumedMesh mesh :
       {ResumedMesh{1, 1},
        ResumedMesh{4, 1},
        ResumedMesh{1, 4},
        ResumedMesh{3, 1},
        ResumedMesh{1, 1, 4},
        ResumedMesh{1, 2, 2},
        ResumedMesh{2, 1, 2}}) {
    const auto name = "dp" + std::to_string(mesh.dp) + "tp" +
                      std::to_string(mesh.tp) + "shard" +
                      std::to_string(mesh.dp_shard);
    SCOPED_TRACE(name);
    // The first ten steps, as a folder of their own.
    test::copy_run_at(10, folder_ / "straight", folder_ / name);
    run(mesh, name);
    const auto actual = metrics(name);
    ASSERT_EQ(actual.size(), kAllSteps);
    for (int i = 0; i < kAllSteps; ++i) {
      EXPECT_EQ(actual[i].at("step"), i + 1);
      EXPECT_EQ(actual[i].at("tokens"), (i + 1) * 24 * 32);
      for (const std::string key : {"loss", "eval_loss"}) {
        ASSERT_EQ(actual[i].contains(key), expected[i].contains(key)) << key;
        if (expected[i].contains(key)) {
          const double value = expected[i].at(key);
          EXPECT_NEAR(actual[i].at(key), value, 1e-4 * value) << key << i;
        }
      }
    }
  }
}

} // namespace
} // namespace weft::integration
