// The models of harness/ on several ranks, against one rank.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/ddp/harness/training.h"
#include "tests/support/run_ranks.h"

namespace weft::test {
namespace {

constexpr int64_t kHarnessSteps = 6;
/// Sums come in another order.
constexpr double kHarnessTolerance = 1e-10;

struct HarnessLayout {
  int64_t dp;
  int64_t tp;
};

struct HarnessCase {
  HarnessKind kind;
  HarnessLayout layout;
};

void expect_named_close(
    const std::map<std::string, at::Tensor>& actual,
    const std::map<std::string, at::Tensor>& expected) {
  for (const auto& [name, tensor] : actual) {
    const auto found = expected.find(name);
    ASSERT_NE(found, expected.end()) << name;
    ASSERT_EQ(tensor.sizes(), found->second.sizes()) << name;
    ASSERT_EQ(tensor.scalar_type(), found->second.scalar_type()) << name;
    const auto error = (tensor.to(at::kDouble) - found->second.to(at::kDouble))
                           .abs()
                           .max()
                           .item<double>();
    EXPECT_LE(error, kHarnessTolerance) << name;
  }
}

class Harness : public ::testing::TestWithParam<HarnessCase> {
 protected:
  /// Each of `runs`, of the model of this case.
  void expect_equal_to_one_rank(std::vector<HarnessRun> runs) {
    const auto [kind, layout] = GetParam();
    const auto [dp, tp] = layout;
    const auto expected = train_harness_twin(kind, dp, kHarnessSteps);
    for (const double loss : expected.losses) {
      ASSERT_TRUE(std::isfinite(loss));
    }
    // It trains: otherwise everything is equal.
    ASSERT_LT(expected.losses.back(), 0.99 * expected.losses.front());
    for (auto& run : runs) {
      run.kind = kind;
      run_ranks(static_cast<int>(dp * tp), [&, dp = dp, tp = tp](auto& self) {
        expect_run_equals(run, self.mesh({dp, tp}, {"dp", "tp"}), expected);
      });
    }
  }

 private:
  static void expect_run_equals(
      const HarnessRun& run,
      const mesh::DeviceMesh& mesh,
      const HarnessTrace& expected) {
    const auto actual = train_harness(run, mesh, kHarnessSteps);
    ASSERT_EQ(actual.losses.size(), expected.losses.size());
    for (size_t i = 0; i < actual.losses.size(); ++i) {
      EXPECT_NEAR(actual.losses[i], expected.losses[i], kHarnessTolerance)
          << "step " << i;
    }
    expect_named_close(actual.parameters, expected.parameters);
    // Batch norm has the running statistics of its own rows.
    if (run.kind != HarnessKind::kTransformerWithBatchNorm ||
        mesh.coordinate("dp") == 0) {
      expect_named_close(actual.buffers, expected.buffers);
    }
  }
};

TEST_P(Harness, EqualsOneRank) {
  expect_equal_to_one_rank({HarnessRun()});
}

TEST_P(Harness, EqualsOneRankWithDelays) {
  HarnessRun run;
  run.options.bucket_cap_mb = 1e-4;
  std::vector<HarnessRun> runs;
  for (const uint64_t seed : {1, 2}) {
    run.delays = HarnessDelays{seed, 1.0};
    runs.push_back(run);
  }
  expect_equal_to_one_rank(runs);
}

TEST_P(Harness, EqualsOneRankWithOptionsAndDelays) {
  HarnessRun run;
  run.delays = HarnessDelays{3, 0.3};
  run.options.bucket_cap_mb = 1e-3;
  auto not_as_views = run;
  not_as_views.options.gradient_as_bucket_view = false;
  auto searching = not_as_views;
  searching.options.find_unused_parameters = true;
  auto with_static_graph = run;
  with_static_graph.options.static_graph = true;
  expect_equal_to_one_rank({not_as_views, searching, with_static_graph});
}

std::vector<HarnessCase> harness_cases() {
  std::vector<HarnessCase> cases;
  for (const auto layout :
       {HarnessLayout{2, 1}, {3, 1}, {2, 2}, {4, 1}, {1, 2}}) {
    for (const auto kind :
         {HarnessKind::kTransformer,
          HarnessKind::kTransformerWithBatchNorm,
          HarnessKind::kTransformerWithSyncBatchNorm,
          HarnessKind::kNested,
          HarnessKind::kAlwaysNested,
          HarnessKind::kMixtureOfExperts}) {
      // Four replicas are for pairs that share an expert; transformers, which
      // take their time, have tensor parallelism on 2x2.
      const bool is_expert = kind == HarnessKind::kMixtureOfExperts;
      const bool is_nested =
          kind == HarnessKind::kNested || kind == HarnessKind::kAlwaysNested;
      if (is_expert || (layout.dp < 4 && (is_nested || layout.dp > 1))) {
        cases.push_back({kind, layout});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<HarnessCase>& info) {
  const auto& [kind, layout] = info.param;
  return std::string(name_of(kind)) + "On" + std::to_string(layout.dp) + "x" +
         std::to_string(layout.tp);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    Harness,
    ::testing::ValuesIn(harness_cases()),
    case_name);

TEST(HarnessDelays, AreTheSameForASeedAndOthersForAnother) {
  const auto time_of = [](uint64_t seed) {
    RandomSleeper sleeper({seed, 2.0});
    std::vector<double> milliseconds;
    for (int i = 0; i < 5; ++i) {
      milliseconds.push_back(sleeper.sleep());
    }
    return milliseconds;
  };
  EXPECT_EQ(time_of(1), time_of(1));
  EXPECT_NE(time_of(1), time_of(2));
}

} // namespace
} // namespace weft::test
