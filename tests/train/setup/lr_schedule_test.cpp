#include "train/setup/lr_schedule.h"

#include <gtest/gtest.h>

namespace weft::train {
namespace {

TEST(LrSchedule, WarmsUpLinearly) {
  for (const auto type :
       {config::LrScheduleType::kCosine,
        config::LrScheduleType::kLinear,
        config::LrScheduleType::kConstant}) {
    const config::LrScheduleConfig schedule{
        .type = type, .warmup_steps = 4, .min_ratio = 0.1};
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 10, 0), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 10, 1), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 10, 3), 2.0);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 2.0, 10, 4), 2.0);
  }
}

// Steps 2 to 10 go down: 8 equal parts from 1 to 0.2.
TEST(LrSchedule, Linear) {
  const config::LrScheduleConfig schedule{
      .type = config::LrScheduleType::kLinear,
      .warmup_steps = 2,
      .min_ratio = 0.2};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 11, 2), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 11, 4), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 11, 6), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 11, 10), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 11, 50), 0.2);
}

// (1 + cos(pi p)) / 2 at p = 0, 1/3, 1/2, 2/3, 1: 1, 3/4, 1/2, 1/4, 0.
TEST(LrSchedule, Cosine) {
  const config::LrScheduleConfig schedule{
      .type = config::LrScheduleType::kCosine,
      .warmup_steps = 0,
      .min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 13, 0), 1.0);
  EXPECT_NEAR(learning_rate(schedule, 1.0, 13, 4), 0.1 + 0.9 * 0.75, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 1.0, 13, 6), 0.1 + 0.9 * 0.5, 1e-15);
  EXPECT_NEAR(learning_rate(schedule, 1.0, 13, 8), 0.1 + 0.9 * 0.25, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 13, 12), 0.1);
}

TEST(LrSchedule, ConstantIgnoresTheFloor) {
  const config::LrScheduleConfig schedule{
      .type = config::LrScheduleType::kConstant,
      .warmup_steps = 0,
      .min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 3e-4, 10, 0), 3e-4);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 3e-4, 10, 9), 3e-4);
}

TEST(LrSchedule, ShortRunsStayInBounds) {
  const config::LrScheduleConfig schedule{
      .type = config::LrScheduleType::kCosine,
      .warmup_steps = 20,
      .min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 5, 4), 0.25);
  const config::LrScheduleConfig one_step{
      .type = config::LrScheduleType::kCosine, .warmup_steps = 0};
  EXPECT_DOUBLE_EQ(learning_rate(one_step, 1.0, 1, 0), 1.0);
}

} // namespace
} // namespace weft::train
