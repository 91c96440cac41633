#include "ddp/reducer/bucket_plan.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::ddp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BucketPlan, FillsBucketsInTheOrderGivenUpToTheCap) {
  const std::vector<BucketItem> items{{40}, {60}, {50}, {30}, {20}};
  EXPECT_THAT(
      plan_buckets(items, {4, 3, 2, 1, 0}, {.first = 100, .rest = 100}),
      ElementsAre(ElementsAre(4, 3, 2), ElementsAre(1, 0)));
}

TEST(BucketPlan, OnlyTheFirstBucketHasTheFirstCap) {
  const std::vector<BucketItem> items(6, BucketItem{10});
  EXPECT_THAT(
      plan_buckets(items, {0, 1, 2, 3, 4, 5}, {.first = 10, .rest = 30}),
      ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3), ElementsAre(4, 5)));
}

TEST(BucketPlan, AGradientAboveTheCapHasItsOwnBucket) {
  const std::vector<BucketItem> items{{10}, {500}, {10}};
  EXPECT_THAT(
      plan_buckets(items, {0, 1, 2}, {.first = 100, .rest = 100}),
      ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(BucketPlan, GroupsNeverShareABucketAndEachHasAFirstCap) {
  const std::vector<BucketItem> items{
      {10, 0}, {10, 1}, {10, 0}, {10, 1}, {10, 0}};
  EXPECT_THAT(
      plan_buckets(items, {0, 1, 2, 3, 4}, {.first = 10, .rest = 100}),
      ElementsAre(
          ElementsAre(0), ElementsAre(1), ElementsAre(3), ElementsAre(2, 4)));
}

TEST(BucketPlan, BucketsComeInTheOrderInWhichTheyFill) {
  const std::vector<BucketItem> items{{10, 0}, {10, 1}, {10, 1}, {10, 0}};
  EXPECT_THAT(
      plan_buckets(items, {0, 1, 2, 3}, {.first = 100, .rest = 100}),
      ElementsAre(ElementsAre(1, 2), ElementsAre(0, 3)));
}

TEST(BucketPlan, EmptyGradientsAndNoGradientsAreFine) {
  EXPECT_THAT(plan_buckets({}, {}, {.first = 1, .rest = 1}), IsEmpty());
  EXPECT_THAT(
      plan_buckets({{0}, {8}, {0}}, {0, 1, 2}, {.first = 8, .rest = 8}),
      ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(BucketCaps, AreOneAndTwentyFiveMiBUnlessGiven) {
  EXPECT_EQ(bucket_caps(std::nullopt).first, 1 << 20);
  EXPECT_EQ(bucket_caps(std::nullopt).rest, 25 << 20);
  EXPECT_EQ(bucket_caps(25.0).first, 25 << 20);
  EXPECT_EQ(bucket_caps(0.5).first, 1 << 19);
  EXPECT_EQ(bucket_caps(0.5).rest, 1 << 19);
  EXPECT_GT(bucket_caps(1e300).rest, int64_t{1} << 60);
}

TEST(BucketCaps, RefuseWhatIsNoSize) {
  EXPECT_THROW(bucket_caps(0.0), c10::ValueError);
  EXPECT_THROW(bucket_caps(-1.0), c10::ValueError);
  EXPECT_THROW(bucket_caps(std::nan("")), c10::ValueError);
}

} // namespace
} // namespace weft::ddp
