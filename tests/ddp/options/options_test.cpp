// Every option, alone and in the pairs that interact, computes what one rank
// computes, and what PyTorch's DDP does.
#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ddp/options/option_training.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::OptionTrace;
using test::RankContext;

struct Layout {
  int64_t dp;
  int64_t tp;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {{2, 1}, {2, 2}, {3, 1}, {1, 2}};
  return all;
}

/// The cases of one area, by the first part of their names.
class Options
    : public ::testing::TestWithParam<std::tuple<Layout, std::string>> {
 protected:
  static void TearDownTestSuite() { ranks_.clear(); }

  int64_t dp() const { return std::get<0>(GetParam()).dp; }
  int64_t tp() const { return std::get<0>(GetParam()).tp; }
  const std::string& name() const { return std::get<1>(GetParam()); }

  void expect_equality() const;

 private:
  std::vector<OptionTrace> train(const test::OptionSetup& setup) const;
  void expect_whole_batch(
      const std::vector<OptionTrace>& traces,
      const test::OptionSetup& setup) const;
  void expect_refusal(const test::OptionSetup& setup) const;
  void expect_pytorch(
      const std::vector<OptionTrace>& traces,
      const test::OptionSetup& setup) const;

  static inline test::SharedRanks ranks_;
};

/// What each rank has after training.
std::vector<OptionTrace> Options::train(const test::OptionSetup& setup) const {
  std::vector<OptionTrace> traces(dp() * tp());
  ranks_.run(dp(), tp(), [&](RankContext& self, const mesh::DeviceMesh& mesh) {
    traces.at(self.rank) = test::train_with_ddp(setup, mesh);
  });
  return traces;
}

void Options::expect_whole_batch(
    const std::vector<OptionTrace>& traces,
    const test::OptionSetup& setup) const {
  auto mean = traces.at(0);
  for (size_t step = 0; step < mean.losses.size(); ++step) {
    mean.losses[step] = 0;
    for (const auto& trace : traces) {
      mean.losses[step] +=
          trace.losses.at(step) / static_cast<double>(traces.size());
    }
  }
  test::expect_traces_close(
      mean,
      test::train_on_whole_batch(setup, dp()),
      setup.tolerance,
      "one rank on the whole batch:");
}

void Options::expect_pytorch(
    const std::vector<OptionTrace>& traces,
    const test::OptionSetup& setup) const {
  const auto stored_as = test::pytorch_case(name());
  if (!stored_as) {
    return; // an option of Weft's alone
  }
  const auto pytorch = test::pytorch_result(*stored_as, dp());
  ASSERT_TRUE(pytorch) << *stored_as << " is not in oracle/ddp_options.json";
  if (!pytorch->error.empty() || !pytorch->note.empty()) {
    return; // not what one rank computes
  }
  for (size_t rank = 0; rank < traces.size(); ++rank) {
    test::expect_traces_close(
        traces[rank],
        pytorch->traces.at(rank / tp()),
        setup.tolerance,
        "rank " + std::to_string(rank) + ", PyTorch:");
  }
}

/// A DTensor's gradient is never sparse; the lookup reports it.
void Options::expect_refusal(const test::OptionSetup& setup) const {
  ranks_.run(dp(), tp(), [&](RankContext&, const mesh::DeviceMesh& mesh) {
    EXPECT_THAT(
        test::message_of_thrown<c10::Error>(
            [&] { test::train_with_ddp(setup, mesh); }),
        ::testing::HasSubstr("sparse gradients"));
  });
}

void Options::expect_equality() const {
  const auto setup = test::setup_of(name());
  if (tp() > 1 && setup.model == "sparse_embedding") {
    expect_refusal(setup);
    return;
  }
  const auto traces = train(setup);
  if (HasFailure()) {
    return;
  }
  const auto by_hand = test::train_replicas_by_hand(setup, dp());
  for (size_t rank = 0; rank < traces.size(); ++rank) {
    test::expect_traces_close(
        traces[rank],
        by_hand.at(rank / tp()),
        setup.tolerance,
        "rank " + std::to_string(rank) + ", by hand:");
  }
  if (test::treats_rows_alone(setup.model) &&
      setup.options.params_and_buffers_to_ignore.empty()) {
    expect_whole_batch(traces, setup);
  }
  expect_pytorch(traces, setup);
}

std::string case_name(
    const ::testing::TestParamInfo<std::tuple<Layout, std::string>>& info) {
  const auto& [layout, name] = info.param;
  auto text = "Dp" + std::to_string(layout.dp) + "Tp" +
              std::to_string(layout.tp) + "_" + name;
  std::replace(text.begin(), text.end(), '+', '_');
  return text;
}

auto cases_of(const std::string& area) {
  return ::testing::Combine(
      ::testing::ValuesIn(layouts()),
      ::testing::ValuesIn(test::option_cases(area)));
}

class BucketOptions : public Options {};
TEST_P(BucketOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, BucketOptions, cases_of("Bucket"), case_name);

class ModeOptions : public Options {};
TEST_P(ModeOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, ModeOptions, cases_of("Mode"), case_name);

class BufferOptions : public Options {};
TEST_P(BufferOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, BufferOptions, cases_of("Buffer"), case_name);

class InitSyncOptions : public Options {};
TEST_P(InitSyncOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(
    Case,
    InitSyncOptions,
    cases_of("InitSync"),
    case_name);

class UnusedOptions : public Options {};
TEST_P(UnusedOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, UnusedOptions, cases_of("Unused"), case_name);

class StaticGraphOptions : public Options {};
TEST_P(StaticGraphOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(
    Case,
    StaticGraphOptions,
    cases_of("StaticGraph"),
    case_name);

class AccumulationOptions : public Options {};
TEST_P(AccumulationOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(
    Case,
    AccumulationOptions,
    cases_of("Accumulation"),
    case_name);

class ModelOptions : public Options {};
TEST_P(ModelOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, ModelOptions, cases_of("Model"), case_name);

class ViewOptions : public Options {};
TEST_P(ViewOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, ViewOptions, cases_of("View"), case_name);

class CopyOptions : public Options {};
TEST_P(CopyOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, CopyOptions, cases_of("Copy"), case_name);

class DelayOptions : public Options {};
TEST_P(DelayOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, DelayOptions, cases_of("Delay"), case_name);

class MixedPrecisionOptions : public Options {};
TEST_P(MixedPrecisionOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(
    Case,
    MixedPrecisionOptions,
    cases_of("MixedPrecision"),
    case_name);

class HookOptions : public Options {};
TEST_P(HookOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, HookOptions, cases_of("Hook"), case_name);

class IgnoreOptions : public Options {};
TEST_P(IgnoreOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(Case, IgnoreOptions, cases_of("Ignore"), case_name);

class OptimizerInBackwardOptions : public Options {};
TEST_P(OptimizerInBackwardOptions, EqualOneRankAndPyTorch) {
  expect_equality();
}
INSTANTIATE_TEST_SUITE_P(
    Case,
    OptimizerInBackwardOptions,
    cases_of("OptimizerInBackward"),
    case_name);

TEST(OptionCases, AreAllOfPyTorchsAndEachOnce) {
  const auto all = test::option_cases();
  const std::set<std::string> cases(all.begin(), all.end());
  EXPECT_EQ(cases.size(), all.size());
  for (const auto& name : test::pytorch_cases()) {
    EXPECT_TRUE(cases.contains(name)) << name;
  }
}

TEST(OptionCases, EachHasASuiteThatRunsIt) {
  const auto& program = *::testing::UnitTest::GetInstance();
  std::set<std::string> suites;
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    suites.insert(program.GetTestSuite(i)->name());
  }
  for (const auto* features :
       {&test::features_of_pytorch(), &test::features_of_weft()}) {
    for (const auto& feature : *features) {
      EXPECT_TRUE(suites.contains("Case/" + feature.area + "Options"))
          << feature.name;
    }
  }
}

} // namespace
} // namespace weft::ddp
