#include <functional>
#include <string>
#include <tuple>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::RankContext;
using test::run_ranks;

/// How many ranks, and what moves their data: "cpu" is shared memory here.
using Case = std::tuple<int, std::string>;

class Coalesced : public ::testing::TestWithParam<Case> {
 protected:
  static void run(const std::function<void(RankContext&)>& body) {
    const auto& [ranks, backend] = GetParam();
    run_ranks(ranks, body, std::chrono::seconds(30), backend);
  }
};

TEST_P(Coalesced, AllReduceSendsOneMessageADtype) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const double n = static_cast<double>(self.world_size);
    const std::vector<at::Tensor> tensors{
        at::full({2, 3}, self.rank + 1.0),
        at::full({4}, self.rank, at::kLong),
        at::full({3, 2}, 2.0).t(),
        at::empty({0}),
        at::full({}, 1.0)};
    group.all_reduce_coalesced(tensors, ReduceOp::kSum, "grads").wait();
    EXPECT_TRUE(at::equal(tensors[0], at::full({2, 3}, n * (n + 1) / 2)));
    EXPECT_TRUE(
        at::equal(tensors[1], at::full({4}, n * (n - 1) / 2, at::kLong)));
    EXPECT_TRUE(at::equal(tensors[2], at::full({2, 3}, 2 * n)));
    EXPECT_TRUE(at::equal(tensors[4], at::full({}, n)));
    EXPECT_EQ(group.flight_recorder().entries().size(), n > 1 ? 2U : 0U);
  });
}

TEST_P(Coalesced, AllGatherIsRankMajorInEveryOutput) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    const std::vector<at::Tensor> inputs{
        at::arange(2.0) + 10.0 * self.rank,
        at::full({1, 3}, self.rank, at::kInt),
        (at::arange(6.0).view({2, 3}) + 100.0 * self.rank).t()};
    const std::vector<at::Tensor> outputs{
        at::empty({n * 2}), at::empty({n, 3}, at::kInt), at::empty({n, 3, 2})};
    group.all_gather_coalesced(outputs, inputs).wait();
    for (int64_t rank = 0; rank < n; ++rank) {
      EXPECT_TRUE(at::equal(
          outputs[0].narrow(0, 2 * rank, 2), at::arange(2.0) + 10.0 * rank));
      EXPECT_TRUE(at::equal(outputs[1][rank], at::full({3}, rank, at::kInt)));
      EXPECT_TRUE(at::equal(
          outputs[2][rank], at::arange(6.0).view({2, 3}).t() + 100.0 * rank));
    }
  });
}

TEST_P(Coalesced, ReduceScatterGivesEveryOutputItsPart) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    const std::vector<at::Tensor> inputs{
        at::arange(2.0 * n) + self.rank,
        at::full({n, 3}, 4.0 * self.rank, at::kDouble),
        at::arange(3.0 * n).view({3, n}).t()};
    const std::vector<at::Tensor> outputs{
        at::empty({2}), at::empty({3}, at::kDouble), at::empty({1, 3})};
    group.reduce_scatter_coalesced(outputs, inputs, ReduceOp::kAvg).wait();
    const double shift = (static_cast<double>(n) - 1) / 2;
    EXPECT_TRUE(
        at::equal(outputs[0], at::arange(2.0) + 2.0 * self.rank + shift));
    EXPECT_TRUE(at::equal(outputs[1], at::full({3}, 4 * shift, at::kDouble)));
    EXPECT_TRUE(at::equal(
        outputs[2][0], at::arange(3.0 * n).view({3, n}).t()[self.rank]));
  });
}

TEST_P(Coalesced, BroadcastOverwritesAll) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t root = self.world_size - 1;
    const std::vector<at::Tensor> tensors{
        at::full({5}, self.rank, at::kBFloat16),
        at::full({2, 2}, self.rank, at::kLong),
        at::full({3}, self.rank, at::kBFloat16)};
    group.broadcast_coalesced(tensors, root).wait();
    for (const auto& tensor : tensors) {
      EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, root)));
    }
  });
}

TEST_P(Coalesced, NothingToSendIsDone) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    group.all_reduce_coalesced({}).wait();
    group.broadcast_coalesced({at::empty({0})}, 0).wait();
    group.all_gather_coalesced({}, {}).wait();
    EXPECT_TRUE(group.flight_recorder().entries().empty());
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Coalesced,
    ::testing::Combine(
        ::testing::Values(1, 2, 3, 4),
        ::testing::Values("cpu", "gloo")),
    [](const auto& info) {
      return std::get<1>(info.param) + std::to_string(std::get<0>(info.param));
    });

} // namespace
} // namespace weft::mesh
