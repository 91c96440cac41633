// Every option, alone and in the pairs that interact, computes what one rank
// computes, and what PyTorch's DDP does.
#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "tests/ddp/option_training.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::OptionTrace;
using test::RankContext;

struct Layout {
  int64_t dp;
  int64_t tp;
};

class Options
    : public ::testing::TestWithParam<std::tuple<Layout, std::string>> {
 protected:
  int64_t dp() const { return std::get<0>(GetParam()).dp; }
  int64_t tp() const { return std::get<0>(GetParam()).tp; }
  const std::string& name() const { return std::get<1>(GetParam()); }

  /// What each rank has after training.
  std::vector<OptionTrace> train(const test::OptionSetup& setup) const {
    std::vector<OptionTrace> traces(dp() * tp());
    test::run_ranks(static_cast<int>(dp() * tp()), [&](RankContext& self) {
      traces.at(self.rank) =
          test::train_with_ddp(setup, self.mesh({dp(), tp()}, {"dp", "tp"}));
    });
    return traces;
  }

  void expect_whole_batch(
      const std::vector<OptionTrace>& traces,
      const test::OptionSetup& setup) const {
    auto mean = traces.at(0);
    for (size_t step = 0; step < mean.losses.size(); ++step) {
      mean.losses[step] = 0;
      for (const auto& trace : traces) {
        mean.losses[step] +=
            trace.losses[step] / static_cast<double>(traces.size());
      }
    }
    test::expect_traces_close(
        mean,
        test::train_on_whole_batch(setup, dp()),
        setup.tolerance,
        "one rank on the whole batch:");
  }
};

std::string case_name(
    const ::testing::TestParamInfo<std::tuple<Layout, std::string>>& info) {
  const auto& [layout, name] = info.param;
  auto text = "Dp" + std::to_string(layout.dp) + "Tp" +
              std::to_string(layout.tp) + "_" + name;
  std::replace(text.begin(), text.end(), '+', '_');
  return text;
}

TEST_P(Options, EqualOneRankAndPyTorch) {
  const auto setup = test::setup_of(name());
  const auto traces = train(setup);
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
  const auto stored_as = test::pytorch_case(name());
  if (!stored_as) {
    return;
  }
  const auto pytorch = test::pytorch_result(*stored_as, dp());
  ASSERT_TRUE(pytorch) << *stored_as << " is not in oracle/ddp_options.json";
  if (!pytorch->error.empty() || !pytorch->note.empty()) {
    return; // not what one rank computes, which was compared with
  }
  for (size_t rank = 0; rank < traces.size(); ++rank) {
    test::expect_traces_close(
        traces[rank],
        pytorch->traces.at(rank / tp()),
        setup.tolerance,
        "rank " + std::to_string(rank) + ", PyTorch:");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Case,
    Options,
    ::testing::Combine(
        ::testing::Values(
            Layout{2, 1},
            Layout{2, 2},
            Layout{3, 1},
            Layout{1, 2}),
        ::testing::ValuesIn(test::option_cases())),
    case_name);

TEST(OptionCases, AreAllOfPyTorchsAndEachOnce) {
  const auto all = test::option_cases();
  const std::set<std::string> cases(all.begin(), all.end());
  EXPECT_EQ(cases.size(), all.size());
  for (const auto& name : test::pytorch_cases()) {
    EXPECT_TRUE(cases.contains(name)) << name;
  }
}

} // namespace
} // namespace weft::ddp
