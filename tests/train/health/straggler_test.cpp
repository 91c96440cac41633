#include "train/health/straggler.h"

#include <cmath>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/run_ranks.h"

namespace weft::train {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;

PhaseTimes times_of(int64_t data, int64_t forward, int64_t backward) {
  return {data * kMs, forward * kMs, backward * kMs, 2 * kMs, 0, 0, kMs};
}

/// Rounds until the first news; -1: none in so many.
template <class Round>
int64_t rounds_until_news(
    StragglerDetector& detector,
    int64_t rounds,
    Round&& round,
    std::vector<StragglerEvent>& event) {
  for (int64_t i = 1; i <= rounds; ++i) {
    event = detector.add_round(round(i));
    if (!event.empty()) {
      return i;
    }
  }
  return -1;
}

TEST(StragglerDetector, NamesRankPhaseAndCostAfterFourRounds) {
  StragglerDetector detector;
  std::vector<StragglerEvent> event;
  const auto round = [](int64_t) {
    std::vector<PhaseTimes> ranks(4, times_of(1, 10, 20));
    ranks[2] = times_of(1, 12, 29);
    return ranks;
  };
  EXPECT_EQ(rounds_until_news(detector, 10, round, event), 4);
  ASSERT_EQ(event.size(), 1U);
  EXPECT_EQ(event[0].rank, 2);
  EXPECT_TRUE(event[0].is_slow);
  EXPECT_EQ(event[0].phase, Phase::kBackward);
  EXPECT_NEAR(event[0].own_ms, 29, 1e-9);
  EXPECT_NEAR(event[0].others_ms, 20, 1e-9);
  EXPECT_NEAR(event[0].cost_ms, 11, 1e-9);
  EXPECT_EQ(
      describe(event[0], 20, 55),
      "rank 2 is slow: backward takes it 29.0 ms a step, the others 20.0 ms, "
      "over the last 20 steps; they wait 11.0 ms for it, 20 % of a step");
  EXPECT_EQ(rounds_until_news(detector, 50, round, event), -1) << "once only";
}

TEST(StragglerDetector, OfTwoTheSlowerOneIsNamed) {
  for (const int64_t slow : {0, 1}) {
    StragglerDetector detector;
    std::vector<StragglerEvent> event;
    EXPECT_EQ(
        rounds_until_news(
            detector,
            10,
            [&](int64_t) {
              std::vector<PhaseTimes> ranks(2, times_of(1, 10, 20));
              ranks[static_cast<size_t>(slow)] = times_of(15, 10, 20);
              return ranks;
            },
            event),
        4);
    EXPECT_EQ(event.at(0).rank, slow);
    EXPECT_EQ(event.at(0).phase, Phase::kData);
  }
}

TEST(StragglerDetector, SaysWhenItIsOver) {
  StragglerDetector detector;
  std::vector<StragglerEvent> event;
  const auto round = [](int64_t i) {
    std::vector<PhaseTimes> ranks(3, times_of(1, 10, 20));
    ranks[1] = times_of(1, i <= 8 ? 20 : 10, 20);
    return ranks;
  };
  EXPECT_EQ(rounds_until_news(detector, 8, round, event), 4);
  EXPECT_EQ(
      rounds_until_news(
          detector, 20, [&](int64_t i) { return round(i + 8); }, event),
      4);
  ASSERT_EQ(event.size(), 1U);
  EXPECT_FALSE(event[0].is_slow);
  EXPECT_EQ(
      describe(event[0], 20, 30),
      "rank 1 is as fast as the others again, over the last 20 steps");
}

// Evaluations and saves come now and then: they make single steps longer.
TEST(StragglerDetector, WhatRunsInFewStepsDoesNotCount) {
  StragglerDetector detector;
  std::vector<StragglerEvent> event;
  EXPECT_EQ(
      rounds_until_news(
          detector,
          50,
          [](int64_t) {
            std::vector<PhaseTimes> ranks(2, times_of(1, 10, 20));
            ranks[1][static_cast<size_t>(Phase::kCheckpoint)] = 900 * kMs;
            return ranks;
          },
          event),
      -1);
}

// A twentieth of noise, and now and then a rank that loses a whole round; an
// hour of rounds of five steps of 30 ms.
TEST(StragglerDetector, NoiseAloneNamesNoRank) {
  for (const size_t ranks : {2, 4}) {
    StragglerDetector detector;
    std::mt19937 random(7);
    std::normal_distribution<double> noise(1.0, 0.05);
    std::vector<StragglerEvent> event;
    EXPECT_EQ(
        rounds_until_news(
            detector,
            24'000,
            [&](int64_t) {
              std::vector<PhaseTimes> times;
              for (size_t i = 0; i < ranks; ++i) {
                const double factor =
                    std::abs(noise(random)) + (random() % 50 == 0 ? 0.5 : 0);
                auto own = times_of(1, 10, 20);
                for (auto& each : own) {
                  each =
                      static_cast<int64_t>(static_cast<double>(each) * factor);
                }
                times.push_back(own);
              }
              return times;
            },
            event),
        -1);
  }
}

/// For 20 seeds: of four ranks one is `slower` times as slow, and each round's
/// times of each rank are spread by `spread`.
void expect_found_after_four_rounds(double spread, double slower) {
  for (int seed = 0; seed < 20; ++seed) {
    StragglerDetector detector;
    std::mt19937 random(static_cast<unsigned>(seed));
    std::normal_distribution<double> noise(1.0, spread);
    std::vector<StragglerEvent> event;
    const auto found = rounds_until_news(
        detector,
        20,
        [&](int64_t) {
          std::vector<PhaseTimes> times;
          for (size_t i = 0; i < 4; ++i) {
            auto own = times_of(1, 10, 20);
            const double factor = noise(random) * (i == 3 ? slower : 1.0);
            for (auto& each : own) {
              each = static_cast<int64_t>(static_cast<double>(each) * factor);
            }
            times.push_back(own);
          }
          return times;
        },
        event);
    EXPECT_EQ(found, 4) << seed;
    ASSERT_EQ(event.size(), 1U);
    EXPECT_EQ(event[0].rank, 3);
  }
}

// The margin follows the noise: where it is small a tenth is enough, and where
// it is large three tenths are.
TEST(StragglerDetector, FindsAFifthInLittleNoiseAndAHalfInMuch) {
  expect_found_after_four_rounds(0.01, 1.2);
  expect_found_after_four_rounds(0.05, 1.6);
}

void work(std::chrono::milliseconds time) {
  std::this_thread::sleep_for(time);
}

TEST(PhaseClock, CountsWhatIsInSpansAndWhatIsNot) {
  PhaseClock clock({});
  {
    const PhaseClock::Span span(&clock, "forward");
    work(std::chrono::milliseconds(20));
  }
  {
    const PhaseClock::Span span(&clock, "clip");
    work(std::chrono::milliseconds(5));
  }
  work(std::chrono::milliseconds(10));
  const auto times = clock.take();
  EXPECT_GE(times[static_cast<size_t>(Phase::kForward)], 20 * kMs);
  EXPECT_GE(times[static_cast<size_t>(Phase::kOptimizer)], 5 * kMs);
  EXPECT_GE(times[static_cast<size_t>(Phase::kOther)], 10 * kMs);
  EXPECT_EQ(times[static_cast<size_t>(Phase::kBackward)], 0);
  EXPECT_LT(clock.take()[static_cast<size_t>(Phase::kForward)], kMs);
  const PhaseClock::Span nothing(nullptr, "forward");
}

TEST(PhaseClock, StandsStillWhileItsRankWaitsForOthers) {
  test::run_ranks(2, [](test::RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    mesh.group("dp").barrier();
    PhaseClock clock({mesh.group("dp")});
    {
      const PhaseClock::Span span(&clock, "forward");
      if (self.rank == 1) {
        work(std::chrono::milliseconds(200));
      }
      auto one = at::ones({1});
      mesh.group("dp").all_reduce(one).wait();
    }
    const auto busy = clock.take()[static_cast<size_t>(Phase::kForward)];
    if (self.rank == 1) {
      EXPECT_GE(busy, 200 * kMs);
    } else {
      EXPECT_LT(busy, 100 * kMs);
    }
  });
}

// Ranks that only sleep: what is measured, exchanged and said.
TEST(StragglerMonitor, TellsRankZeroWithinTwentySteps) {
  for (const auto& [dp, tp] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    std::vector<std::string> said;
    int64_t after = 0;
    test::run_ranks(
        static_cast<int>(dp * tp),
        [&, dp = dp, tp = tp](test::RankContext& self) {
          const auto mesh = self.mesh({dp, tp}, {"dp", "tp"});
          config::Recipe recipe;
          int64_t step = 0;
          StragglerMonitor watch(
              recipe,
              mesh,
              base::Logger({.write = [&](const std::string& line) {
                EXPECT_EQ(self.rank, 0);
                said.push_back(line);
                after = step + 1;
              }}));
          for (; step < 22; ++step) {
            for (const auto* phase : {"forward", "backward"}) {
              const PhaseClock::Span span(watch.clock(), phase);
              const bool is_slow =
                  self.rank == 1 && std::string(phase) == "backward";
              // Longer than a loaded machine takes to wake a thread.
              work(std::chrono::milliseconds(is_slow ? 48 : 8));
            }
            watch.step_done();
          }
        });
    ASSERT_EQ(said.size(), 1U);
    EXPECT_THAT(
        said[0],
        ContainsRegex(
            "rank 1 is slow: backward takes it ([4-9][0-9]|1[0-9][0-9])[.]"));
    EXPECT_LE(after, 20);
  }
}

TEST(StragglerMonitor, AloneOrSwitchedOffThereIsNothingToCount) {
  test::run_ranks(2, [](test::RankContext& self) {
    const auto mesh = self.mesh({2, 1}, {"dp", "tp"});
    config::Recipe recipe;
    recipe.straggler_detection.every = 0;
    StragglerMonitor off(recipe, mesh, {});
    EXPECT_EQ(off.clock(), nullptr);
    off.step_done();
  });
  test::run_ranks(1, [](test::RankContext& self) {
    const auto mesh = self.mesh({1, 1}, {"dp", "tp"});
    StragglerMonitor alone(config::Recipe(), mesh, {});
    EXPECT_EQ(alone.clock(), nullptr);
    alone.step_done();
  });
}

} // namespace
} // namespace weft::train
