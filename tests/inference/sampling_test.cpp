// How tokens are chosen: against transformers (oracle/generate.py).

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "inference/sampling.h"
#include "tests/config/fixtures.h"
#include "tests/models/formula.h"
#include "train/trainer.h"

namespace weft::inference {
namespace {

using ::testing::HasSubstr;

TEST(Sampling, WarpsLogitsAsTransformersDoes) {
  std::ifstream file(WEFT_SOURCE_DIR "/tests/models/oracle/generate.json");
  const auto stored = nlohmann::json::parse(file).at("warped");
  const auto logits =
      at::tensor(stored.at("logits").get<std::vector<double>>(), at::kDouble);
  for (const auto& each : stored.at("cases")) {
    SCOPED_TRACE(each.at("top_k").dump() + " " + each.at("top_p").dump());
    const auto warped = warp_logits(
        logits,
        {.temperature = each.at("temperature"),
         .top_k = each.at("top_k"),
         .top_p = each.at("top_p")});
    const auto& scores = each.at("scores");
    ASSERT_EQ(warped.numel(), static_cast<int64_t>(scores.size()));
    for (size_t i = 0; i < scores.size(); ++i) {
      const auto here = warped[static_cast<int64_t>(i)].item<double>();
      ASSERT_EQ(std::isinf(here), scores[i].is_null()) << i;
      if (!scores[i].is_null()) {
        EXPECT_NEAR(here, scores[i].get<double>(), 1e-6);
      }
    }
  }
}

TEST(Sampling, TokensComeAsOftenAsTheirProbabilities) {
  const auto logits = at::tensor({0.0, 1.0, -1.0, 2.0, 0.5}, at::kFloat);
  constexpr int64_t kDraws = 20000;
  std::vector<double> counts(5);
  for (int64_t i = 0; i < kDraws; ++i) {
    ++counts[static_cast<size_t>(
        choose_token(logits, {.top_k = 4}, i % 50, i / 50))];
  }
  const auto expected = warp_logits(logits, {.top_k = 4}).softmax(-1);
  EXPECT_EQ(counts[2], 0);
  for (int64_t token = 0; token < 5; ++token) {
    const auto p = expected[token].item<double>();
    EXPECT_NEAR(
        counts[static_cast<size_t>(token)],
        p * kDraws,
        4 * std::sqrt(p * (1 - p) * kDraws) + 1e-9);
  }
}

TEST(Sampling, NumbersBelongToSeedSampleAndPosition) {
  const double number = sampling_number(1, 2, 3);
  EXPECT_EQ(sampling_number(1, 2, 3), number);
  EXPECT_GE(number, 0);
  EXPECT_LT(number, 1);
  EXPECT_NE(sampling_number(2, 2, 3), number);
  EXPECT_NE(sampling_number(1, 3, 3), number);
  EXPECT_NE(sampling_number(1, 2, 4), number);
}

TEST(Sampling, TemperatureZeroAndOneTokenAreGreedy) {
  const auto logits = models::wave(50, 0.7, at::kFloat);
  const auto likeliest = logits.argmax().item<int64_t>();
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(choose_token(logits, {.temperature = 0}, 0, i), likeliest);
    EXPECT_EQ(choose_token(logits, {.top_k = 1}, 0, i), likeliest);
    EXPECT_EQ(choose_token(logits, {.top_p = 0}, 0, i), likeliest);
  }
}

// Quotients that no float holds, and none that a double does.
TEST(Sampling, ATinyTemperatureIsGreedy) {
  const auto logits = models::wave(50, 0.7, at::kFloat);
  const auto likeliest = logits.argmax().item<int64_t>();
  for (const double temperature :
       {1e-10,
        1e-40,
        1e-45,
        1e-300,
        std::numeric_limits<double>::denorm_min()}) {
    for (const double top_p : {1.0, 0.5}) {
      EXPECT_EQ(
          choose_token(
              logits, {.temperature = temperature, .top_p = top_p}, 0, 3),
          likeliest)
          << temperature;
      EXPECT_EQ(
          choose_token(
              -1e4 * logits.abs() - 1, {.temperature = temperature}, 0, 3),
          logits.abs().argmin().item<int64_t>())
          << temperature;
    }
  }
}

TEST(Sampling, LogitsThatAreNoNumbersAreRefused) {
  constexpr auto kInfinity = std::numeric_limits<float>::infinity();
  constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0, 1e-45}) {
    const auto refusal = [&](const std::vector<float>& logits) {
      return fixtures::message_of<train::NonFiniteError>([&] {
        choose_token(
            at::tensor(logits, at::kFloat),
            {.temperature = temperature},
            0,
            17);
      });
    };
    EXPECT_THAT(
        refusal({1, kNan, 2}), HasSubstr("largest logit of token 17 is nan"));
    EXPECT_THAT(refusal({1, kInfinity, 2}), HasSubstr("is inf"));
    EXPECT_THAT(refusal({-kInfinity, -kInfinity}), HasSubstr("is -inf"));
    // A token without a chance is none of it.
    EXPECT_EQ(refusal({-kInfinity, 0}), "");
  }
}

} // namespace
} // namespace weft::inference
