// Several threads of a rank on one mesh.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/dtensor/on_ranks.h"

namespace weft::dtensor {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using weft::test::RankContext;
using weft::test::run_ranks;

constexpr int kCalls = 50;
constexpr int kRanks = 2;
constexpr int kThreads = 2;

/// What one thread of one rank got.
struct Result {
  int right = 0;
  int wrong = 0;
  std::string error;
};
using Results = std::array<std::array<Result, kThreads>, kRanks>;

/// By hand: the sums of wave-free constants, k * 8 * (1 + 0.175).
void sum_repeatedly(
    const at::Tensor& x,
    const at::Tensor& y,
    double factor,
    Result& result) {
  try {
    for (int i = 0; i < kCalls; ++i) {
      const auto sum = full_tensor(((x + y) * factor).sum()).item<double>();
      const bool is_right = std::abs(sum - factor * 9.4) < 1e-9;
      (is_right ? result.right : result.wrong) += 1;
    }
  } catch (const c10::Error& error) {
    result.error = error.what_without_backtrace();
  }
}

/// Two threads a rank that nothing orders.
Results race(const std::string& backend) {
  Results results;
  run_ranks(
      kRanks,
      [&](RankContext& self) {
        const auto mesh = test::line(self);
        const auto options = at::TensorOptions(at::kDouble);
        const auto x =
            distribute_tensor(at::full({8}, 1.0, options), mesh, {Shard(0)});
        const auto y =
            distribute_tensor(at::full({8}, 0.175, options), mesh, {Shard(0)});
        auto& own = results[self.rank];
        std::thread one([&] { sum_repeatedly(x, y, 1, own[0]); });
        std::thread two([&] { sum_repeatedly(x, y, 2, own[1]); });
        one.join();
        two.join();
      },
      std::chrono::minutes(5),
      backend);
  return results;
}

int tries() {
  const char* text = std::getenv("WEFT_THREAD_TRIES");
  return text ? std::atoi(text) : 15;
}

class RacingThreads : public ::testing::TestWithParam<std::string> {};

TEST_P(RacingThreads, AreRightOrRefusedOnEveryRank) {
  int refused = 0;
  int late = 0; // wrong numbers of threads whose program is refused later
  for (int i = 0; i < tries(); ++i) {
    const auto results = race(GetParam());
    int refusals = 0;
    int wrong = 0;
    for (const auto& rank : results) {
      bool is_refused = false;
      for (const auto& thread : rank) {
        wrong += thread.wrong;
        is_refused = is_refused || !thread.error.empty();
        if (!thread.error.empty()) {
          EXPECT_THAT(
              thread.error,
              AnyOf(
                  HasSubstr("call on group \"world\" in an order that differs "
                            "between ranks"),
                  HasSubstr("Ranks called different collectives in group")));
          EXPECT_THAT(thread.error, HasSubstr("A group serves one caller"));
        }
      }
      refusals += is_refused ? 1 : 0;
    }
    ASSERT_TRUE(refusals == 0 || refusals == kRanks) << "try " << i;
    ASSERT_TRUE(wrong == 0 || refusals == kRanks) << "try " << i;
    refused += refusals > 0 ? 1 : 0;
    late += wrong;
  }
  std::printf(
      "%s: %d tries, %d refused, %d right, %d wrong values before a refusal\n",
      GetParam().c_str(),
      tries(),
      refused,
      tries() - refused,
      late);
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    RacingThreads,
    ::testing::Values("cpu", "gloo"),
    [](const auto& info) { return info.param; });

// One after the other, as a helper that is waited for.
TEST(JoinedThreads, ShareAMesh) {
  run_ranks(kRanks, [](RankContext& self) {
    const auto options = at::TensorOptions(at::kDouble);
    const auto mesh = test::line(self);
    const auto x =
        distribute_tensor(at::full({8}, 1.0, options), mesh, {Shard(0)});
    const auto y =
        distribute_tensor(at::full({8}, 0.175, options), mesh, {Shard(0)});
    Result result;
    for (int i = 0; i < 3; ++i) {
      sum_repeatedly(x, y, 1, result);
      std::thread([&] { sum_repeatedly(x, y, 2, result); }).join();
    }
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.right, 6 * kCalls);
  });
}

} // namespace
} // namespace weft::dtensor
