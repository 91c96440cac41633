// What the trainer keeps beside the model, on several ranks.

#include "train/trainer.h"

#include <map>
#include <optional>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/config/fixtures.h"
#include "tests/support/run_ranks.h"
#include "train/setup/load_recipe.h"
#include "train/setup/validate.h"

namespace weft::train {
namespace {

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    std::string text;
    for (int i = 0; i < 2000; ++i) {
      text += "line " + std::to_string(i * 7919 % 1000) + "\n";
    }
    folder_.write("text.txt", text);
  }

  config::Recipe recipe(int64_t dp, int64_t tp, const std::string& more = "")
      const {
    auto recipe = parse_recipe(
        fmt::format(
            "mesh: {{dp: {}, tp: {}}}\n"
            "model: {{dim: 16, layers: 1, heads: 4, kv_heads: 2, ffn_dim: "
            "24}}\n"
            "data: {{paths: [\"{}\"], sequence_length: 16}}\n"
            "train: {{steps: 9, global_batch_size: 8}}\n"
            "optimizer: {{lr: 1.0e-2}}\n"
            "eval: {{batches: 1}}\n"
            "{}",
            dp,
            tp,
            folder_ / "text.txt",
            more),
        "test");
    validate(recipe, dp * tp);
    return recipe;
  }

  fixtures::TempFolder folder_;
};

using Whole = std::map<std::string, at::Tensor>;

Whole whole_of(const dtensor::StateDict& state) {
  const at::NoGradGuard no_grad;
  Whole whole;
  for (const auto& [name, tensor] : state) {
    whole[name] = dtensor::full_tensor(tensor).clone();
  }
  return whole;
}

TEST_F(TrainerTest, AllRanksStopIfOneIsToldTo) {
  for (int guilty = 0; guilty < 4; ++guilty) {
    test::run_ranks(4, [&](test::RankContext& self) {
      Trainer trainer(recipe(2, 2), self.world);
      bool is_told = false;
      trainer.set_stop_request([&] { return is_told; });
      trainer.train_step(0);
      EXPECT_FALSE(trainer.should_stop());
      is_told = self.rank == guilty;
      trainer.train_step(1);
      EXPECT_TRUE(trainer.should_stop()) << self.rank << " " << guilty;
    });
  }
}

// The one that is asked, and whenever: all leave it after the same micro-batch.
TEST_F(TrainerTest, AStopCutsAnEvaluationShortOnAllRanks) {
  for (int guilty = 0; guilty < 4; ++guilty) {
    test::run_ranks(4, [&](test::RankContext& self) {
      auto whole = recipe(2, 2);
      whole.train.micro_batch_size = 1; // four of them
      Trainer trainer(whole, self.world);
      int asked = 0;
      // Before each of the micro-batches, and at the end.
      trainer.set_stop_request(
          [&] { return ++asked > 2 && self.rank == guilty; });
      EXPECT_EQ(trainer.evaluate(), std::nullopt);
      EXPECT_EQ(asked, 3);
      EXPECT_TRUE(trainer.should_stop());
    });
  }
}

TEST_F(TrainerTest, AnEvaluationThatWasDoneWhenTheStopCameCounts) {
  test::run_ranks(2, [&](test::RankContext& self) {
    Trainer trainer(recipe(1, 2), self.world);
    int asked = 0;
    trainer.set_stop_request([&] { return ++asked > 1 && self.rank == 1; });
    EXPECT_NE(trainer.evaluate(), std::nullopt);
    EXPECT_TRUE(trainer.should_stop());
  });
}

// One over each mesh dim that has ranks; the flight recorder has those of 1
// rank, too.
TEST_F(TrainerTest, AStepSendsLossNormAndStopInOneMessageAMeshDim) {
  for (const auto& [dp, tp] :
       {std::pair{2, 2}, std::pair{2, 1}, std::pair{1, 2}, std::pair{1, 1}}) {
    test::run_ranks(dp * tp, [&, dp = dp, tp = tp](test::RankContext& self) {
      Trainer trainer(recipe(dp, tp), self.world);
      trainer.train_step(0);
      const auto count = [&](const char* dim) {
        int64_t found = 0;
        for (const auto& entry :
             trainer.job().mesh.group(dim).flight_recorder().entries()) {
          for (const auto* name : {"loss", "stop", "grad_norm"}) {
            found += entry.name == name ? 1 : 0;
          }
        }
        return found;
      };
      const auto before = std::pair{count("dp"), count("tp")};
      const auto metrics = trainer.train_step(1);
      EXPECT_EQ(count("dp") - before.first, dp > 1 ? 1 : 0);
      EXPECT_EQ(count("tp") - before.second, tp > 1 ? 1 : 0);
      EXPECT_GT(metrics.grad_norm, 0);
      EXPECT_FALSE(metrics.skipped);
    });
  }
}

// The average is that of the whole weights, wherever they lie.
TEST_F(TrainerTest, AveragesTheWeightsOverTheSteps) {
  for (const auto& [dp, tp] :
       {std::pair{1, 1}, std::pair{2, 2}, std::pair{1, 4}}) {
    test::run_ranks(dp * tp, [&, dp = dp, tp = tp](test::RankContext& self) {
      Trainer trainer(recipe(dp, tp, "ema: {decay: 0.8}\n"), self.world);
      auto& job = trainer.job();
      const auto weights = [&] { return whole_of(job.ddp->state_dict()); };
      auto expected = weights();
      EXPECT_FALSE(state_dicts(job).contains("ema")) << "no step yet";
      for (int64_t step = 0; step < 3; ++step) {
        trainer.train_step(step);
        for (auto& [name, tensor] : weights()) {
          expected[name] = at::lerp(expected[name], tensor, 1 - 0.8);
        }
      }
      const auto average = whole_of(state_dicts(job).at("ema"));
      EXPECT_EQ(average.size(), job.model->named_parameters().size());
      for (const auto& [name, tensor] : average) {
        EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
      }
    });
  }
}

TEST_F(TrainerTest, EvaluatesTheAverageAndGoesOnWithTheWeights) {
  for (const auto* dtype : {"float32", "bfloat16"}) {
    test::run_ranks(2, [&](test::RankContext& self) {
      auto one = recipe(1, 2, "ema: {decay: 0.5}\n");
      one.train.dtype = config::choice_of<config::TrainDtype>(dtype).value();
      Trainer trainer(one, self.world);
      trainer.train_step(0);
      trainer.train_step(1);
      const auto weights = whole_of(trainer.job().ddp->state_dict());
      const double own = trainer.evaluate().value();
      const double averaged = trainer.evaluate_average().value();
      EXPECT_GT(averaged, own) << "it lags behind";
      EXPECT_EQ(trainer.evaluate(), own);
      for (const auto& [name, tensor] :
           whole_of(trainer.job().ddp->state_dict())) {
        EXPECT_TRUE(at::equal(tensor, weights.at(name))) << name;
      }
    });
  }
}

} // namespace
} // namespace weft::train
