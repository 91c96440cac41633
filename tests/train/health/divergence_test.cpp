#include "train/health/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config/fixtures.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

TEST(DescribeDivergence, TheDeviatingRankOfSeveral) {
  EXPECT_EQ(
      describe(
          {.what = "model.norm.weight",
           .good_step = 12,
           .step = 13,
           .majority_ranks = {0, 1, 3},
           .mismatched_ranks = {2},
           .largest = 1.25e-5}),
      "rank 2 has other bits of model.norm.weight than ranks 0, 1 and 3 after "
      "step 13; after step 12 they were equal. The largest difference between "
      "copies is now 1.25e-05.");
}

TEST(DescribeDivergence, ANumberOnTwoRanks) {
  EXPECT_EQ(
      describe(
          {.what = "the learning rate",
           .good_step = 0,
           .step = 1,
           .tied_ranks = {0, 1}}),
      "ranks 0 and 1 have different bits of the learning rate after step 1; "
      "after step 0 they were equal. None of them are in the majority.");
}

TEST(DescribeDivergence, ABrokenSeal) {
  Divergence found{
      .what = "exp_avg of x",
      .step = 7,
      .is_memory_corruption = true,
      .mismatched_ranks = {3},
      .largest = 0,
      .nan_ranks = {3}};
  EXPECT_EQ(
      describe(found),
      "bits of exp_avg of x changed on rank 3 after step 7, before the update "
      "of step 8, when nothing writes there: memory is to be suspected. The "
      "largest difference between copies is now 0, with NaNs on rank 3.");
  found.is_before_update = false;
  EXPECT_THAT(
      describe(found), HasSubstr("rank 3 after step 7, when nothing writes"));
}

TEST(TieRecords, SurviveAsTextForTheSameRecipeOnly) {
  config::Recipe recipe;
  recipe.name = "a";
  const TieRecord record{
      .what = "x", .step = 9, .tied_ranks = {0, 2}, .values = {-5, 7, 6, 7}};
  const auto text = to_json(record, recipe);
  EXPECT_EQ(parse_tie_record(text, recipe), record);
  recipe.optimizer.lr *= 2;
  EXPECT_FALSE(parse_tie_record(text, recipe));
  for (const auto* other : {"", "{", "[]", "{\"recipe\": 3}"}) {
    EXPECT_FALSE(parse_tie_record(other, recipe)) << other;
  }
  EXPECT_FALSE(parse_tie_record(text.substr(0, text.size() / 2), recipe));
}

TEST(DescribeReplay, WhoHasWhatItHadWasRight) {
  const TieRecord record{
      .what = "x", .step = 9, .tied_ranks = {0, 1}, .values = {4, 5}};
  EXPECT_EQ(
      describe_replay(record, {4, 4}),
      "integrity check: step 9 is done again, and rank 0 has the bits of x "
      "that it "
      "had: what rank 1 had when the last run stopped was wrong");
  EXPECT_THAT(
      describe_replay(record, {5, 5}),
      HasSubstr("what rank 0 had when the last run stopped was wrong"));
  EXPECT_THAT(
      describe_replay(record, {6, 6}),
      HasSubstr("each rank now has other bits of x than any of ranks 0 and 1"));
}

} // namespace
} // namespace weft::train
