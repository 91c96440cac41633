#include "ddp/reducer/runtime_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace weft::ddp {
namespace {

using std::chrono::nanoseconds;
using test::message_of_thrown;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RuntimeStatistics::Time at_ns(int64_t ns) {
  return RuntimeStatistics::Time(nanoseconds(ns));
}

DDPLoggingData data_of(const RuntimeStatistics& statistics) {
  DDPLoggingData data;
  statistics.write_to(data);
  return data;
}

/// Forward 10 ns, backward 100 ns, the first bucket launched after `launch`
/// ns of it, the last one reduced `late` ns after it.
void run_iteration(
    RuntimeStatistics& statistics,
    int64_t begin,
    int64_t launch = 40,
    int64_t late = 20) {
  statistics.on_forward_begin(at_ns(begin));
  statistics.on_backward_begin(at_ns(begin + 10));
  statistics.on_comm_begin(at_ns(begin + 10 + launch));
  statistics.on_comm_begin(at_ns(begin + 10 + launch + 5));
  statistics.on_comm_end(at_ns(begin + 10 + launch + 6));
  statistics.on_backward_compute_end(at_ns(begin + 110));
  statistics.on_comm_end(at_ns(begin + 110 + late));
}

TEST(RuntimeStatistics, MeasuresFromEventToEvent) {
  RuntimeStatistics statistics;
  run_iteration(statistics, 1000);
  EXPECT_EQ(data_of(statistics).iteration, 0) << "under way";
  EXPECT_TRUE(statistics.finish_iteration());
  const auto data = data_of(statistics);
  EXPECT_EQ(data.iteration, 1);
  EXPECT_EQ(data.forward_compute_time, 10);
  EXPECT_EQ(data.forward_compute_time_start, 1000);
  EXPECT_EQ(data.backward_compute_time, 100);
  EXPECT_EQ(data.backward_compute_time_start, 1010);
  EXPECT_EQ(data.backward_compute_time_end, 1110);
  EXPECT_EQ(data.backward_comm_time, 80);
  EXPECT_EQ(data.backward_comm_time_start, 1050);
  EXPECT_EQ(data.backward_comm_time_end, 1130);
  EXPECT_EQ(data.backward_compute_comm_overlap_time, 60);
}

TEST(RuntimeStatistics, AveragesOverSampledIterations) {
  RuntimeStatistics statistics;
  for (int i = 0; i < 4; ++i) {
    run_iteration(statistics, 1000 * i, /*launch=*/40 + 4 * i, /*late=*/20 + i);
  }
  statistics.finish_iteration();
  const auto data = data_of(statistics);
  EXPECT_EQ(data.iteration, 4);
  EXPECT_EQ(data.backward_comm_time, 71);
  EXPECT_EQ(data.avg_backward_comm_time, (80 + 77 + 74 + 71) / 4);
  EXPECT_EQ(data.avg_backward_compute_comm_overlap_time, 60 - 6);
  EXPECT_EQ(data.avg_forward_compute_time, 10);
  EXPECT_EQ(data.avg_backward_compute_time, 100);
}

TEST(RuntimeStatistics, SamplesTheFirstTenAndThenEverySoMany) {
  RuntimeStatistics statistics;
  statistics.set_sample_rate(7);
  std::vector<int64_t> sampled;
  for (int i = 1; i <= 30; ++i) {
    statistics.on_forward_begin(at_ns(i));
    if (statistics.is_sampled()) {
      sampled.push_back(i);
    }
  }
  EXPECT_THAT(sampled, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 21, 28));
}

TEST(RuntimeStatistics, SamplesEveryHundredUnlessTold) {
  RuntimeStatistics statistics;
  std::vector<int64_t> ended;
  for (int i = 1; i <= 250; ++i) {
    if (statistics.on_forward_begin(at_ns(i)) && i > 11) {
      ended.push_back(i - 1);
    }
  }
  EXPECT_THAT(ended, ElementsAre(100, 200));
}

TEST(RuntimeStatistics, AnIterationThatIsNotSampledLeavesTheLastOnesTimes) {
  RuntimeStatistics statistics;
  for (int i = 1; i <= 12; ++i) {
    run_iteration(statistics, 1000 * i);
  }
  EXPECT_FALSE(statistics.finish_iteration());
  EXPECT_EQ(data_of(statistics).iteration, 10);
  EXPECT_EQ(data_of(statistics).forward_compute_time_start, 10'000);
}

TEST(RuntimeStatistics, EventsThatDidNotComeLeaveNoTime) {
  RuntimeStatistics statistics;
  run_iteration(statistics, 1000);
  statistics.on_forward_begin(at_ns(2000)); // evaluation: no backward
  statistics.finish_iteration();
  const auto data = data_of(statistics);
  EXPECT_EQ(data.iteration, 2);
  EXPECT_EQ(data.forward_compute_time, 0);
  EXPECT_EQ(data.forward_compute_time_start, 2000);
  EXPECT_EQ(data.backward_comm_time, 0);
  EXPECT_EQ(data.backward_comm_time_start, 0);
  EXPECT_EQ(data.avg_backward_comm_time, 80);
}

TEST(RuntimeStatistics, AReductionAfterTheLastGradientOverlapsNothing) {
  RuntimeStatistics statistics;
  run_iteration(statistics, 0, /*launch=*/100, /*late=*/30);
  run_iteration(statistics, 1000, /*launch=*/103, /*late=*/30);
  statistics.finish_iteration();
  EXPECT_EQ(data_of(statistics).backward_comm_time, 27);
  EXPECT_EQ(data_of(statistics).backward_compute_comm_overlap_time, 0);
}

TEST(RuntimeStatistics, AFailedIterationDoesNotCount) {
  RuntimeStatistics statistics;
  run_iteration(statistics, 1000);
  run_iteration(statistics, 2000);
  statistics.drop_iteration();
  EXPECT_FALSE(statistics.on_forward_begin(at_ns(3000)));
  EXPECT_EQ(data_of(statistics).iteration, 1);
}

TEST(RuntimeStatistics, SaysWhetherTheGraphWasTheSame) {
  RuntimeStatistics statistics;
  EXPECT_FALSE(data_of(statistics).can_set_static_graph);
  statistics.on_unused({2}, 16);
  EXPECT_FALSE(data_of(statistics).can_set_static_graph) << "seen once";
  statistics.on_unused({2}, 16);
  EXPECT_TRUE(data_of(statistics).can_set_static_graph);
  statistics.on_unused({}, 0);
  EXPECT_FALSE(data_of(statistics).can_set_static_graph);
  EXPECT_EQ(data_of(statistics).unused_parameter_size, 0);
  statistics.on_unused({}, 0);
  EXPECT_FALSE(data_of(statistics).can_set_static_graph);
}

TEST(RuntimeStatistics, KeepsWhatTheLastBackwardDid) {
  RuntimeStatistics statistics;
  statistics.on_unused({1, 2}, 64);
  statistics.on_ready_order({3, 0});
  statistics.on_buckets_reduced(2);
  const auto data = data_of(statistics);
  EXPECT_EQ(data.unused_parameter_size, 64);
  EXPECT_THAT(data.prev_iteration_grad_ready_order_indices, ElementsAre(3, 0));
  EXPECT_EQ(data.num_buckets_reduced, 2);
}

TEST(RuntimeStatistics, RefusesASampleRateBelowOne) {
  RuntimeStatistics statistics;
  for (const int64_t every : {0, -3}) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { statistics.set_sample_rate(every); }),
        HasSubstr("sample rate: got " + std::to_string(every)));
  }
}

} // namespace
} // namespace weft::ddp
