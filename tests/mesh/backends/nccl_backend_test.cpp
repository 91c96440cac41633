// The NCCL backend's own part, over a group in memory: which of c10d's
// operations it calls, with which buffers, and what comes out. Over gloo the
// same calls have to give the same bits where both promise them.

#include "mesh/backends/nccl_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "tests/mesh/device/in_process_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::Board;
using test::memory_plugin;
using test::MemoryGroup;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct GroupPair {
  c10::intrusive_ptr<MemoryGroup> group;
  std::shared_ptr<Backend> backend;
};

GroupPair make_pair(
    const std::shared_ptr<Board>& status_exchange,
    int64_t rank,
    int64_t n) {
  GroupMembers members;
  members.name = "memory";
  members.rank = rank;
  for (int64_t r = 0; r < n; ++r) {
    members.ranks.push_back(r);
  }
  GroupPair pair;
  pair.group = c10::make_intrusive<MemoryGroup>(status_exchange, rank, n);
  pair.backend = make_nccl_backend(
      members, pair.group, c10::Device(c10::DeviceType::CPU), memory_plugin());
  return pair;
}

/// Runs `body` on n ranks with a communicator in memory and one over gloo.
void compare_with_gloo(
    int n,
    const std::function<void(Communicator&, Communicator&, RankContext&)>&
        body) {
  const auto status_exchange = std::make_shared<Board>(n);
  run_ranks(
      n,
      [&](RankContext& self) {
        Communicator memory(make_pair(status_exchange, self.rank, n).backend);
        auto gloo = self.world.group();
        body(memory, gloo, self);
      },
      std::chrono::seconds(30),
      "gloo");
}

at::Tensor values_of_rank(int64_t rank, int64_t numel, at::ScalarType dtype) {
  if (dtype == at::kBool) {
    return at::arange(numel).add(rank).remainder(3).eq(0);
  }
  if (c10::isComplexType(dtype)) {
    // Sums of their products are exact: at::mul() fuses some of them, which
    // ones depends on where they lie.
    const auto real =
        values_of_rank(rank, numel, at::kLong).to(at::kFloat).div(4);
    return at::complex(real, real.flip(0)).to(dtype);
  }
  const auto x = at::arange(numel).add(1 + rank * 7).remainder(13);
  return c10::isFloatingType(dtype) ? x.to(at::kFloat).div(3).to(dtype)
                                    : x.to(dtype);
}

class NcclBackend : public ::testing::TestWithParam<int> {};

TEST_P(NcclBackend, AllReducesEveryDtype) {
  compare_with_gloo(
      GetParam(), [](Communicator& memory, Communicator& gloo, auto& self) {
        for (const auto dtype :
             {at::kFloat,
              at::kDouble,
              at::kLong,
              at::kShort,
              at::kBool,
              at::kComplexFloat}) {
          for (const auto op :
               {ReduceOp::kSum,
                ReduceOp::kProduct,
                ReduceOp::kMin,
                ReduceOp::kMax}) {
            const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
            if (ordered && c10::isComplexType(dtype)) {
              continue;
            }
            auto a = values_of_rank(self.rank, 10, dtype);
            auto b = a.clone();
            memory.all_reduce(a, op).wait();
            gloo.all_reduce(b, op).wait();
            EXPECT_TRUE(at::equal(a, b)) << dtype << " " << int(op);
          }
        }
        auto mean = at::full({3}, static_cast<double>(self.rank));
        memory.all_reduce(mean, ReduceOp::kAvg).wait();
        EXPECT_EQ(
            mean[1].template item<double>(),
            static_cast<double>(memory.size() - 1) / 2);
      });
}

TEST_P(NcclBackend, GathersPartsOfAnySizes) {
  compare_with_gloo(
      GetParam(), [](Communicator& memory, Communicator& gloo, auto& self) {
        const std::vector<std::vector<int64_t>> sizes{
            {4, 4, 4, 4}, {5, 5, 5, 4}, {3, 0, 1, 0}, {0, 6, 0, 0}};
        for (const auto& counts : sizes) {
          for (const auto dtype : {at::kBFloat16, at::kShort}) {
            const auto input =
                values_of_rank(self.rank, counts[self.rank], dtype);
            std::vector<at::Tensor> a;
            std::vector<at::Tensor> b;
            for (int64_t r = 0; r < memory.size(); ++r) {
              a.push_back(at::zeros({counts[r]}, dtype));
              b.push_back(at::ones({counts[r]}, dtype));
            }
            memory.all_gather_uneven(a, input).wait();
            gloo.all_gather_uneven(b, input).wait();
            for (int64_t r = 0; r < memory.size(); ++r) {
              EXPECT_TRUE(at::equal(a[r], b[r])) << counts << " rank " << r;
            }
          }
        }
      });
}

TEST_P(NcclBackend, ReduceScatterGivesTheBitsOfTheCpu) {
  compare_with_gloo(
      GetParam(), [](Communicator& memory, Communicator& gloo, auto& self) {
        for (const auto dtype : {at::kFloat, at::kBFloat16, at::kBool}) {
          for (const int64_t last : {3, 1, 0}) {
            std::vector<at::Tensor> inputs;
            for (int64_t r = 0; r < memory.size(); ++r) {
              const int64_t count = r + 1 == memory.size() ? last : 3;
              inputs.push_back(values_of_rank(self.rank + r, count, dtype));
            }
            auto a = at::empty_like(inputs[self.rank]);
            auto b = at::empty_like(a);
            memory.reduce_scatter_uneven(a, inputs).wait();
            gloo.reduce_scatter_uneven(b, inputs).wait();
            EXPECT_TRUE(at::equal(a, b)) << dtype << " " << last;
          }
        }
      });
}

TEST_P(NcclBackend, MovesTheRestLikeGloo) {
  compare_with_gloo(
      GetParam(), [](Communicator& memory, Communicator& gloo, auto& self) {
        std::vector<at::Tensor> inputs;
        std::vector<at::Tensor> a;
        std::vector<at::Tensor> b;
        for (int64_t r = 0; r < memory.size(); ++r) {
          // Rank s sends (s + r) % 3 elements to rank r.
          const int64_t count = (self.rank + r) % 3;
          inputs.push_back(values_of_rank(self.rank, count, at::kDouble));
          a.push_back(at::zeros({count}, at::kDouble));
          b.push_back(at::ones({count}, at::kDouble));
        }
        memory.all_to_all(a, inputs).wait();
        gloo.all_to_all(b, inputs).wait();
        for (int64_t r = 0; r < memory.size(); ++r) {
          EXPECT_TRUE(at::equal(a[r], b[r]));
        }

        // Not contiguous: packed, sent, unpacked.
        auto matrix =
            values_of_rank(self.rank, 12, at::kFloat).view({3, 4}).t();
        memory.broadcast(matrix, memory.size() - 1).wait();
        EXPECT_TRUE(at::equal(
            matrix,
            values_of_rank(memory.size() - 1, 12, at::kFloat)
                .view({3, 4})
                .t()));

        std::vector<at::Tensor> some{
            values_of_rank(self.rank, 5, at::kFloat),
            values_of_rank(self.rank, 2, at::kLong)};
        auto same = std::vector<at::Tensor>{some[0].clone(), some[1].clone()};
        memory.all_reduce_coalesced(some).wait();
        gloo.all_reduce_coalesced(same).wait();
        EXPECT_TRUE(at::equal(some[0], same[0]));
        EXPECT_TRUE(at::equal(some[1], same[1]));
        memory.barrier();
      });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    NcclBackend,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

TEST(NcclBackendPlan, PadsWhatIsNearlyEven) {
  EXPECT_TRUE(pads_all_gather({5, 5, 5, 4}));
  EXPECT_TRUE(pads_all_gather({100, 60}));
  EXPECT_FALSE(pads_all_gather({100, 59}));
  EXPECT_FALSE(pads_all_gather({3, 3, 3, 0}));
  EXPECT_FALSE(pads_all_gather({0, 6, 0, 0}));
}

TEST(NcclBackendPlan, CallsNcclsOwnOperationsWhereTheyFit) {
  const auto status_exchange = std::make_shared<Board>(2);
  run_ranks(2, [&](RankContext& self) {
    const auto pair = make_pair(status_exchange, self.rank, 2);
    Communicator memory(pair.backend);
    auto x = at::ones({4});
    memory.all_reduce(x).wait();
    memory.all_gather(at::empty({8}), x).wait();
    memory
        .all_gather_uneven(
            {at::empty({4}), at::empty({3})}, x.narrow(0, 0, 4 - self.rank))
        .wait();
    memory
        .all_gather_uneven(
            {at::empty({4}), at::empty({0})},
            x.narrow(0, 0, self.rank == 0 ? 4 : 0))
        .wait();
    memory.reduce_scatter(at::empty({2}), x).wait();
    EXPECT_THAT(
        pair.group->started,
        ElementsAre(
            "all_reduce", "all_gather", "all_gather", "sends", "all_to_all"));
  });
}

TEST(NcclBackendFlightRecorder, AnOperationEndsWhenTheDeviceSaysSo) {
  const auto status_exchange = std::make_shared<Board>(2);
  const auto own = make_pair(status_exchange, 0, 2);
  const auto peer = make_pair(status_exchange, 1, 2);
  Communicator first(own.backend);
  Communicator second(peer.backend);
  auto a = at::ones({2, 2}).t(); // Unpacked after the message.
  auto b = at::ones({2, 2});
  auto work = first.all_reduce(a);
  EXPECT_FALSE(work.is_completed());
  EXPECT_EQ(first.flight_recorder().entries().front().end_ns, 0);
  second.all_reduce(b).wait();
  EXPECT_TRUE(work.is_completed());
  EXPECT_GT(first.flight_recorder().entries().front().end_ns, 0);
  work.wait();
  EXPECT_TRUE(at::equal(a, at::full({2, 2}, 2.0)));
}

TEST(NcclBackendFailure, IsFoundAfterTheWaitThatCouldNotSeeIt) {
  const auto status_exchange = std::make_shared<Board>(1);
  const auto pair = make_pair(status_exchange, 0, 1);
  Communicator memory(pair.backend);
  auto x = at::ones({4});
  memory.all_reduce(x).wait();
  memory.check();
  pair.group->error = c10d::ErrorType::TIMEOUT;
  EXPECT_THAT(
      message_of_thrown<CommError>([&] { memory.check(); }),
      AllOf(HasSubstr("Timed out after 300 s"), HasSubstr("group \"memory\"")));
  EXPECT_EQ(pair.group->aborts, 1);
  EXPECT_THAT(
      message_of_thrown<CommError>([&] { memory.all_reduce(x); }),
      HasSubstr("[all_reduce] Timed out after 300 s"));
}

TEST(NcclBackendFailure, AGroupIsShutDownOnlyWhenNothingIsUnderWay) {
  const auto status_exchange = std::make_shared<Board>(2);
  auto own = make_pair(status_exchange, 0, 2);
  auto peer = make_pair(status_exchange, 1, 2);
  auto a = at::ones({4});
  auto b = at::ones({4});
  {
    auto first = own.backend->all_reduce(a, ReduceOp::kSum);
    auto second = peer.backend->all_reduce(b, ReduceOp::kSum);
    first->wait(); // The second BackendWork waits when it goes.
  }
  peer.backend.reset();
  EXPECT_EQ(peer.group->shutdowns, 1);
  EXPECT_EQ(peer.group->aborts, 0);
  own.group->error = c10d::ErrorType::COMM_ERROR;
  own.backend.reset();
  EXPECT_EQ(own.group->shutdowns, 0);
  EXPECT_EQ(own.group->aborts, 1);
}

} // namespace
} // namespace weft::mesh
