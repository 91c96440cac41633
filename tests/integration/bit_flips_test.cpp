// Bits of one rank's memory are turned over while a run trains: what the
// integrity check says, and when. bench/bit_flips.py does it a hundred times.

#include <filesystem>
#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/config/fixtures.h"
#include "tests/integration/bit_flips.h"
#include "tests/integration/training.h"
#include "tests/support/run_ranks.h"
#include "train/setup/validate.h"

namespace weft::integration {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Embedding, 2 x 9 of the layers, norm, head.
constexpr size_t kTensors = 21;

class BitFlips : public ::testing::Test {
 protected:
  config::Recipe recipe(int64_t dp, int64_t tp, int64_t every, bool seal)
      const {
    config::Recipe recipe;
    recipe.name = "flips";
    recipe.output_dir = folder_.path();
    recipe.mesh = {dp, tp};
    recipe.model.dim = 32;
    recipe.model.layers = 2;
    recipe.model.heads = 4;
    recipe.model.kv_heads = 4;
    recipe.model.ffn_dim = 48;
    recipe.model.vocab_size = 257;
    recipe.data.paths = {corpus_path()};
    recipe.data.sequence_length = 16;
    recipe.train.steps = 8;
    recipe.train.global_batch_size = 12;
    recipe.integrity_check.every = every;
    recipe.integrity_check.hash_weights = seal;
    recipe.origins.source = "test";
    train::validate(recipe, dp * tp);
    return recipe;
  }

  static std::vector<FlipResult> train(
      const config::Recipe& recipe,
      const std::vector<Flip>& flips) {
    const auto ranks = recipe.mesh.dp * recipe.mesh.tp;
    std::vector<FlipResult> results(static_cast<size_t>(ranks));
    test::run_ranks(static_cast<int>(ranks), [&](test::RankContext& self) {
      results[static_cast<size_t>(self.rank)] =
          train_with_flip(recipe, self.world, flips);
    });
    return results;
  }

  fixtures::TempFolder folder_;
};

TEST_F(BitFlips, WithoutThemNothingIsSaid) {
  for (const auto& [dp, tp] :
       {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 1}}) {
    for (const bool seal : {false, true}) {
      auto quiet = recipe(dp, tp, 1, seal);
      quiet.ema.decay = 0.9;
      quiet.model.attention_dropout = 0.2;
      for (const auto& result : train(quiet, {})) {
        EXPECT_EQ(result.message, "") << dp << "x" << tp;
        EXPECT_THAT(result.notes, IsEmpty());
      }
    }
  }
}

// On every mesh, one rank alone too: the hash needs no other copy.
TEST_F(BitFlips, InWeightsAreFoundAtTheNextComparisonAndBlamedOnTheRank) {
  std::mt19937_64 random(20261123);
  constexpr int64_t kEvery = 3;
  for (const auto& [dp, tp] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    for (int trial = 0; trial < 6; ++trial) {
      const auto one = recipe(dp, tp, kEvery, true);
      auto flip = random_flip(random, dp * tp, kTensors, one.train.steps);
      flip.when = static_cast<Flip::When>(trial % 4);
      SCOPED_TRACE(fmt::format(
          "{}x{}: rank {}, step {}, tensor {}, element {}, bit {}, moment {}",
          dp,
          tp,
          flip.rank,
          flip.step,
          flip.tensor,
          flip.element,
          flip.bit,
          trial % 4));
      for (const auto& result : train(one, {flip})) {
        EXPECT_EQ(result.named, flip.rank) << result.message;
        EXPECT_LE(result.steps_until, kEvery);
        EXPECT_THAT(
            result.message,
            HasSubstr(fmt::format(
                "after step {}, before the update of step {}",
                flip.step,
                flip.step + 1)));
      }
    }
  }
}

TEST_F(BitFlips, MajorityIdentifiesTheRankOfThreeReplicas) {
  const Flip flip{
      .when = Flip::When::kBeforeUpdate,
      .rank = 1,
      .step = 4,
      .tensor = 5,
      .element = 7,
      .bit = 20};
  for (const auto& result : train(recipe(3, 1, 2, false), {flip})) {
    EXPECT_EQ(result.named, 1) << result.message;
    EXPECT_EQ(result.steps_until, 2);
    EXPECT_THAT(
        result.message,
        AllOf(
            HasSubstr(
                "[integrity_check] rank 1 has other bits of model.layers.0."),
            HasSubstr(" than ranks 0 and 2 after step 6; after step 4 they "
                      "were equal. The largest difference between copies is "
                      "now "),
            HasSubstr("Nothing was saved since. The same command begins "
                      "again. ")));
  }
}

// Tensors that are whole on every tensor-parallel rank have four copies.
TEST_F(BitFlips, CopiesOnTensorParallelRanksVoteToo) {
  const Flip flip{
      .when = Flip::When::kBeforeUpdate,
      .rank = 2,
      .step = 3,
      .tensor = kTensors - 2, // The last norm.
      .bit = 22};
  for (const auto& result : train(recipe(2, 2, 1, false), {flip})) {
    EXPECT_EQ(result.named, 2) << result.message;
    EXPECT_EQ(result.steps_until, 1);
    EXPECT_THAT(
        result.message,
        HasSubstr("rank 2 has other bits of model.norm.weight than ranks 0, 1 "
                  "and 3 after step 4"));
  }
}

// An update that went wrong on one of two: who it was is known once the step
// has been done again.
TEST_F(BitFlips, RepeatedStepIdentifiesTheRankOfTwoReplicas) {
  const auto two = recipe(2, 1, 3, true);
  for (const int64_t guilty : {0, 1}) {
    const Flip flip{
        .where = Flip::Where::kReducedGradient,
        .rank = guilty,
        .step = 3,
        .tensor = 2,
        .element = 3,
        .bit = 22};
    for (const auto& result : train(two, {flip})) {
      EXPECT_THAT(
          result.message,
          AllOf(
              HasSubstr("ranks 0 and 1 have different bits of "),
              HasSubstr(" after step 4; after step 3 they were equal. None of "
                        "them are in the majority"),
              HasSubstr("begins again, does step 4 again and then says which "
                        "rank was wrong")));
    }
    EXPECT_TRUE(std::filesystem::exists(train::tie_record_path(two)));
    const auto again = train(two, {});
    ASSERT_EQ(again[0].notes.size(), 1U);
    EXPECT_THAT(
        again[0].notes[0],
        AllOf(
            HasSubstr("integrity check: step 4 is done again, and "),
            HasSubstr(fmt::format("rank {} has the bits of ", 1 - guilty)),
            HasSubstr(fmt::format(
                "what rank {} had when the last run stopped was wrong",
                guilty))));
    EXPECT_THAT(again[1].notes, IsEmpty());
    EXPECT_FALSE(std::filesystem::exists(train::tie_record_path(two)));
    EXPECT_THAT(train(two, {})[0].notes, IsEmpty());
  }
}

// The sum is wrong on all replicas alike: nothing here can tell.
TEST_F(BitFlips, InAGradientThatIsYetToBeReducedAreNotSeen) {
  const Flip flip{
      .where = Flip::Where::kOwnGradient,
      .rank = 1,
      .step = 3,
      .tensor = 2,
      .element = 3,
      .bit = 22};
  for (const auto& result : train(recipe(2, 1, 1, true), {flip})) {
    EXPECT_EQ(result.message, "");
  }
}

TEST_F(BitFlips, SwitchedOffNothingIsCompared) {
  const Flip flip{.rank = 1, .step = 1, .bit = 22};
  for (const auto& result : train(recipe(2, 1, 0, true), {flip})) {
    EXPECT_EQ(result.message, "");
  }
}

} // namespace
} // namespace weft::integration
