#include <algorithm>
#include <barrier>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/communicator.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::RankContext;
using test::run_ranks;

constexpr std::array kDtypes{
    at::kFloat,
    at::kDouble,
    at::kHalf,
    at::kBFloat16,
    at::kChar,
    at::kByte,
    at::kShort,
    at::kInt,
    at::kLong};

/// 0, 1, 2, ... and `first` more: small enough to be exact in every dtype.
at::Tensor ramp(int64_t count, int64_t first, at::ScalarType dtype) {
  return (at::arange(count, at::kLong) + first).to(dtype);
}

std::vector<at::Tensor> empty_parts(
    const std::vector<int64_t>& sizes,
    at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> parts;
  for (const int64_t size : sizes) {
    parts.push_back(at::full({size}, 99, dtype));
  }
  return parts;
}

/// How many ranks, and what moves their data: "cpu" is shared memory here.
using Case = std::tuple<int, std::string>;

class Collective : public ::testing::TestWithParam<Case> {
 protected:
  static void run(const std::function<void(RankContext&)>& body) {
    const auto& [ranks, backend] = GetParam();
    run_ranks(ranks, body, std::chrono::seconds(30), backend);
  }
};

TEST_P(Collective, AllReduceCombinesEveryRanksValue) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    for (const auto dtype : kDtypes) {
      SCOPED_TRACE(c10::toString(dtype));
      auto total = ramp(5, self.rank, dtype);
      group.all_reduce(total).wait();
      EXPECT_TRUE(
          at::equal(total, (at::arange(5) * n + n * (n - 1) / 2).to(dtype)));

      auto least = ramp(5, self.rank, dtype);
      group.all_reduce(least, ReduceOp::kMin).wait();
      EXPECT_TRUE(at::equal(least, ramp(5, 0, dtype)));

      auto most = ramp(5, self.rank, dtype);
      group.all_reduce(most, ReduceOp::kMax).wait();
      EXPECT_TRUE(at::equal(most, ramp(5, n - 1, dtype)));

      auto product = at::full({3}, self.rank + 1, dtype);
      group.all_reduce(product, ReduceOp::kProduct).wait();
      const int64_t factorial = n == 4 ? 24 : n == 3 ? 6 : n;
      EXPECT_TRUE(at::equal(product, at::full({3}, factorial, dtype)));
    }
  });
}

TEST_P(Collective, AllReduceAveragesFloatingAndComplex) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    for (const auto dtype :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      auto mean = at::full({2, 3}, 2 * self.rank, dtype);
      group.all_reduce(mean, ReduceOp::kAvg).wait();
      EXPECT_TRUE(
          at::equal(mean, at::full({2, 3}, self.world_size - 1, dtype)));
    }
    auto complex = at::full(
        {2}, c10::complex<float>(2.0F * self.rank, 1), at::kComplexFloat);
    group.all_reduce(complex, ReduceOp::kAvg).wait();
    EXPECT_TRUE(at::equal(
        complex,
        at::full(
            {2},
            c10::complex<float>(self.world_size - 1.0F, 1),
            at::kComplexFloat)));
  });
}

// Large and small messages travel differently; kLarge elements are large in
// every dtype.
constexpr int64_t kLarge = 300'000;

TEST_P(Collective, LargeMessagesAreReducedAlike) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    for (const auto dtype : kDtypes) {
      SCOPED_TRACE(c10::toString(dtype));
      const auto values = (at::arange(kLarge, at::kLong) % 20).to(dtype);
      auto total = values + self.rank;
      group.all_reduce(total).wait();
      EXPECT_TRUE(at::equal(total, values * n + n * (n - 1) / 2));
      auto most = values + self.rank;
      group.all_reduce(most, ReduceOp::kMax).wait();
      EXPECT_TRUE(at::equal(most, values + (n - 1)));
      auto least = values + self.rank;
      group.all_reduce(least, ReduceOp::kMin).wait();
      EXPECT_TRUE(at::equal(least, values));
      auto product = at::full({kLarge}, 2, dtype);
      group.all_reduce(product, ReduceOp::kProduct).wait();
      EXPECT_TRUE(at::equal(product, at::full({kLarge}, 1 << n, dtype)));
    }
    auto mean = at::full({kLarge}, 2.0 * self.rank);
    group.all_reduce(mean, ReduceOp::kAvg).wait();
    EXPECT_TRUE(at::equal(mean, at::full({kLarge}, n - 1.0)));
    auto flags = at::full({kLarge}, self.rank == n - 1, at::kBool);
    group.all_reduce(flags).wait();
    EXPECT_TRUE(flags.all().item<bool>());
  });
}

TEST_P(Collective, LargeMessagesAreGatheredAlike) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    for (const auto dtype : {at::kFloat, at::kBool}) {
      auto output = at::zeros({n, kLarge}, dtype);
      group.all_gather(output, at::full({kLarge}, self.rank % 2, dtype)).wait();
      for (int64_t rank = 0; rank < n; ++rank) {
        EXPECT_TRUE(
            at::equal(output[rank], at::full({kLarge}, rank % 2, dtype)));
      }
    }
    // Rank 1 has nothing, if there is one.
    std::vector<int64_t> sizes(n, kLarge);
    sizes[n > 1 ? 1 : 0] = n > 1 ? 0 : kLarge;
    auto outputs = empty_parts(sizes, at::kShort);
    const auto own = at::full({sizes[self.rank]}, self.rank, at::kShort);
    group.all_gather_uneven(outputs, own).wait();
    for (int64_t rank = 0; rank < n; ++rank) {
      EXPECT_TRUE(
          at::equal(outputs[rank], at::full({sizes[rank]}, rank, at::kShort)));
    }
    auto everywhere = at::full({kLarge}, self.rank, at::kDouble);
    group.broadcast(everywhere, n - 1).wait();
    EXPECT_TRUE(at::equal(everywhere, at::full({kLarge}, n - 1, at::kDouble)));
  });
}

TEST_P(Collective, BoolSumIsOrAndProductIsAnd) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const bool last = self.rank == self.world_size - 1;
    auto any = torch::tensor({last, false, true});
    group.all_reduce(any).wait();
    EXPECT_TRUE(at::equal(any, torch::tensor({true, false, true})));
    auto all = torch::tensor({last, false, true});
    group.all_reduce(all, ReduceOp::kProduct).wait();
    EXPECT_TRUE(
        at::equal(all, torch::tensor({self.world_size == 1, false, true})));
  });
}

TEST_P(Collective, AllGatherPlacesInputsInRankOrder) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    for (const auto dtype : kDtypes) {
      auto output = at::full({self.world_size, 2, 3}, 99, dtype);
      group.all_gather(output, ramp(6, 6 * self.rank, dtype)).wait();
      EXPECT_TRUE(
          at::equal(output.flatten(), ramp(6 * self.world_size, 0, dtype)));
    }
    auto flags = at::zeros({2 * self.world_size}, at::kBool);
    group.all_gather(flags, torch::tensor({true, false})).wait();
    EXPECT_EQ(flags.sum().item<int64_t>(), self.world_size);
  });
}

TEST_P(Collective, AllGatherUnevenTakesAnySizesEmptyOnesToo) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    // Rank r has 3 - r elements: the last of four has none.
    std::vector<int64_t> sizes;
    for (int64_t rank = 0; rank < self.world_size; ++rank) {
      sizes.push_back(3 - rank);
    }
    auto outputs = empty_parts(sizes, at::kBFloat16);
    group
        .all_gather_uneven(
            outputs, ramp(sizes[self.rank], 10 * self.rank, at::kBFloat16))
        .wait();
    for (int64_t rank = 0; rank < self.world_size; ++rank) {
      EXPECT_TRUE(at::equal(
          outputs[rank], ramp(sizes[rank], 10 * rank, at::kBFloat16)));
    }
    // Neighbours in one buffer, as split() makes them, need no copy.
    auto whole = at::zeros({std::accumulate(sizes.begin(), sizes.end(), 0L)});
    group
        .all_gather_uneven(
            whole.split_with_sizes(sizes),
            at::full({sizes[self.rank]}, self.rank + 1.0))
        .wait();
    int64_t at = 0;
    for (int64_t rank = 0; rank < self.world_size; ++rank) {
      for (int64_t i = 0; i < sizes[rank]; ++i) {
        EXPECT_EQ(whole[at++].item<float>(), rank + 1.0F);
      }
    }
  });
}

TEST_P(Collective, ReduceScatterKeepsTheOwnPartOfTheSum) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    for (const auto dtype : kDtypes) {
      auto output = at::full({2, 2}, 99, dtype);
      group.reduce_scatter(output, ramp(4 * n, self.rank, dtype)).wait();
      EXPECT_TRUE(at::equal(
          output.flatten(),
          ((at::arange(4) + 4 * self.rank) * n + n * (n - 1) / 2).to(dtype)));

      group
          .reduce_scatter(output, ramp(4 * n, self.rank, dtype), ReduceOp::kMax)
          .wait();
      EXPECT_TRUE(
          at::equal(output.flatten(), ramp(4, 4 * self.rank + n - 1, dtype)));
    }
    auto mean = at::empty({3});
    group
        .reduce_scatter(
            mean, at::full({3 * n}, 2.0 * self.rank), ReduceOp::kAvg)
        .wait();
    EXPECT_TRUE(at::equal(mean, at::full({3}, n - 1.0)));
  });
}

TEST_P(Collective, ReduceScatterUnevenTakesAnySizes) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    // Rank 0's part is empty, rank r's has r elements.
    std::vector<at::Tensor> inputs;
    for (int64_t rank = 0; rank < n; ++rank) {
      inputs.push_back(at::full({rank}, 10.0 * rank + self.rank));
    }
    auto output = at::full({self.rank}, 99.0);
    group.reduce_scatter_uneven(output, inputs).wait();
    EXPECT_TRUE(at::equal(
        output,
        at::full({self.rank}, 10.0 * self.rank * n + n * (n - 1) / 2.0)));
  });
}

TEST_P(Collective, AllToAllExchangesPartsOfAnySize) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    // s sends (s * r) % 3 elements with the value 10 s + r to r.
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    for (int64_t peer = 0; peer < self.world_size; ++peer) {
      const int64_t count = self.rank * peer % 3;
      inputs.push_back(at::full({count}, 10 * self.rank + peer, at::kLong));
      outputs.push_back(at::full({count}, 99, at::kLong));
    }
    group.all_to_all(outputs, inputs).wait();
    for (int64_t peer = 0; peer < self.world_size; ++peer) {
      EXPECT_TRUE(at::equal(
          outputs[peer], at::full_like(outputs[peer], 10 * peer + self.rank)));
    }
  });
}

// They end in any order, among other collectives.
TEST_P(Collective, SeveralAllToAllsAreUnderWayAtOnce) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    constexpr int64_t kCalls = 12;
    const auto count = [&](int64_t call, int64_t from, int64_t to) {
      return (call + 2 * from + to) % 3 * (call % 4 == 3 ? 50'000 : 1);
    };
    std::vector<std::vector<at::Tensor>> outputs(kCalls);
    std::vector<Work> works;
    for (int64_t call = 0; call < kCalls; ++call) {
      std::vector<at::Tensor> inputs;
      for (int64_t peer = 0; peer < self.world_size; ++peer) {
        inputs.push_back(
            at::full({count(call, self.rank, peer)}, double(call + peer)));
        outputs[call].push_back(at::zeros({count(call, peer, self.rank)}));
      }
      works.push_back(group.all_to_all(outputs[call], inputs));
      works.push_back(group.all_reduce(at::ones({3})));
    }
    // Each rank waits in an order of its own.
    std::rotate(works.begin(), works.begin() + 3 * self.rank, works.end());
    for (auto& work : works) {
      work.wait();
    }
    for (int64_t call = 0; call < kCalls; ++call) {
      for (const auto& output : outputs[call]) {
        EXPECT_TRUE(
            at::equal(output, at::full_like(output, double(call + self.rank))));
      }
    }
  });
}

// The last rank takes part in none of them.
TEST_P(Collective, AnAbortEndsAllToAllsThatWaitForOthers) {
  // An abort would end a rank's connecting to the others, too.
  std::barrier connected(std::get<int>(GetParam()));
  run([&](RankContext& self) {
    Communicator group = self.world.group();
    connected.arrive_and_wait();
    if (self.world_size == 1 || self.rank + 1 == self.world_size) {
      return;
    }
    const std::vector<at::Tensor> inputs(self.world_size, at::ones({3}));
    std::vector<at::Tensor> outputs;
    for (int64_t peer = 0; peer < self.world_size; ++peer) {
      outputs.push_back(at::zeros({3}));
    }
    std::vector<Work> works;
    for (int call = 0; call < 4; ++call) {
      works.push_back(group.all_to_all(outputs, inputs));
    }
    group.abort();
    for (auto& work : works) {
      EXPECT_THROW(work.wait(), CommError);
    }
  });
}

// One element counts as contiguous whatever its strides.
TEST_P(Collective, ASingleElementMayHaveAnyStrides) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const auto odd = [](double value) {
      return at::full({1}, value).as_strided({1, 1}, {7, 5});
    };
    auto sum = odd(0);
    std::vector<at::Tensor> terms;
    std::vector<at::Tensor> inputs(self.world_size);
    std::vector<at::Tensor> outputs(self.world_size);
    for (int64_t peer = 0; peer < self.world_size; ++peer) {
      terms.push_back(peer == 0 ? odd(1) : at::empty({0, 1}));
      inputs[peer] = at::empty({0, 1});
      outputs[peer] = at::empty({0, 1});
    }
    auto part = self.rank == 0 ? sum : at::empty({0, 1});
    group.reduce_scatter_uneven(part, terms).wait();
    inputs[0] = self.rank == 0 ? odd(3) : inputs[0];
    outputs[0] = self.rank == 0 ? odd(0) : outputs[0];
    group.all_to_all(outputs, inputs).wait();
    if (self.rank == 0) {
      EXPECT_EQ(part.item<float>(), self.world_size);
      EXPECT_EQ(outputs[0].item<float>(), 3);
    }
  });
}

TEST_P(Collective, AllToAllWithNothingAtAllStaysInStep) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    // Only rank 0 sends, and only to the last rank.
    const int64_t last = self.world_size - 1;
    std::vector<int64_t> sends(self.world_size, 0);
    std::vector<int64_t> receives(self.world_size, 0);
    sends[last] = self.rank == 0 ? 2 : 0;
    receives[0] = self.rank == last ? 2 : 0;
    auto inputs = empty_parts(sends);
    auto outputs = empty_parts(receives);
    for (auto& input : inputs) {
      input.fill_(7);
    }
    group.all_to_all(outputs, inputs).wait();
    if (self.rank == last) {
      EXPECT_TRUE(at::equal(outputs[0], at::full({2}, 7.0)));
    }
    auto one = at::ones({1});
    group.all_reduce(one).wait();
    EXPECT_EQ(one.item<float>(), self.world_size);
  });
}

TEST_P(Collective, BroadcastOverwritesWithTheRootsValues) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    for (int64_t root = 0; root < self.world_size; ++root) {
      for (const auto dtype : kDtypes) {
        auto tensor = ramp(7, self.rank == root ? 3 : 50, dtype);
        group.broadcast(tensor, root).wait();
        EXPECT_TRUE(at::equal(tensor, ramp(7, 3, dtype)));
      }
      auto flag = torch::tensor({self.rank == root});
      group.broadcast(flag, root).wait();
      EXPECT_TRUE(flag.item<bool>());
    }
    group.barrier();
  });
}

TEST_P(Collective, NonContiguousTensorsArePackedAndUnpacked) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    const auto base = at::arange(12.0).view({3, 4});

    auto whole = base.clone();
    group.all_reduce(whole.t()).wait();
    EXPECT_TRUE(at::equal(whole, base * n));

    auto column = base.clone();
    group.all_reduce(column.select(1, 2)).wait();
    auto expected = base.clone();
    expected.select(1, 2).mul_(n);
    EXPECT_TRUE(at::equal(column, expected));

    auto gathered = at::empty({n, 4, 3});
    group.all_gather(gathered, (base + self.rank).t()).wait();
    for (int64_t rank = 0; rank < n; ++rank) {
      EXPECT_TRUE(at::equal(gathered[rank], (base + rank).t()));
    }

    auto part = at::empty({4, 3});
    group.reduce_scatter(part, base.t().unsqueeze(0).expand({n, 4, 3})).wait();
    EXPECT_TRUE(at::equal(part, base.t() * n));

    std::vector<at::Tensor> columns;
    auto target = at::zeros({2, n});
    for (int64_t rank = 0; rank < n; ++rank) {
      columns.push_back(target.select(1, rank));
    }
    group.all_gather_uneven(columns, at::full({2}, self.rank + 1.0)).wait();
    EXPECT_TRUE(at::equal(target, at::arange(1.0, n + 1.0).expand({2, n})));
  });
}

TEST_P(Collective, LeafParametersCanBeMoved) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    auto parameter = at::full({4 * n}, self.rank + 5.0).requires_grad_();
    group.broadcast(parameter, 0).wait();
    EXPECT_TRUE(at::equal(parameter.detach(), at::full({4 * n}, 5.0)));
    group.all_reduce(parameter, ReduceOp::kAvg).wait();
    auto part = at::empty({4}).requires_grad_();
    group.reduce_scatter(part, parameter).wait();
    EXPECT_TRUE(at::equal(part.detach(), at::full({4}, 5.0 * n)));
    group.all_gather(parameter, part).wait();
    EXPECT_TRUE(parameter.is_leaf() && part.is_leaf());
  });
}

// 0.1 in float does not add up alike in every order, so bits tell the order.
TEST_P(Collective, ReduceScatterAddsInRankOrderWhereverAnElementLies) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    constexpr int64_t kCount = 1003;
    const auto values = [&](int64_t rank) {
      return at::full({n * kCount}, 0.1 + 1e6 * ((rank * 7) % 3)) /
             static_cast<double>(rank + 3);
    };
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      auto output = at::empty({kCount}, dtype);
      group.reduce_scatter(output, values(self.rank).to(dtype)).wait();
      float sum = values(0).to(dtype)[0].item<float>();
      for (int64_t rank = 1; rank < n; ++rank) {
        sum += values(rank).to(dtype)[0].item<float>();
      }
      EXPECT_TRUE(at::equal(output, at::full({kCount}, sum).to(dtype)));
    }
  });
}

TEST_P(Collective, EmptyTensorsAreNotSent) {
  run([](RankContext& self) {
    Communicator group = self.world.group();
    auto empty = at::empty({0, 3});
    group.all_reduce(empty).wait();
    group.all_gather(empty, empty).wait();
    group.reduce_scatter(empty, empty).wait();
    group.broadcast(empty, 0).wait();
    EXPECT_TRUE(group.flight_recorder().entries().empty());
  });
}

TEST_P(Collective, TwoGroupsOverlapInAnyOrderOfWaiting) {
  run([](RankContext& self) {
    std::vector<int64_t> ranks(self.world_size);
    std::iota(ranks.begin(), ranks.end(), 0);
    Communicator first = self.world.make_group("first", ranks);
    Communicator second = self.world.make_group("second", ranks);
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({1000}, i + self.rank, at::kLong));
      works.push_back((i % 2 == 0 ? first : second).all_reduce(tensors.back()));
    }
    for (int i = 0; i < 20; ++i) {
      works[self.rank % 2 == 0 ? i : 19 - i].wait();
    }
    const int64_t n = self.world_size;
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(works[i].is_completed());
      EXPECT_TRUE(at::equal(
          tensors[i], at::full({1000}, i * n + n * (n - 1) / 2, at::kLong)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Collective,
    ::testing::Combine(
        ::testing::Values(1, 2, 3, 4),
        ::testing::Values("cpu", "gloo")),
    [](const auto& info) {
      return std::get<1>(info.param) + std::to_string(std::get<0>(info.param));
    });

class CollectiveGroup : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(int ranks, const std::function<void(RankContext&)>& body) {
    run_ranks(ranks, body, std::chrono::seconds(30), GetParam());
  }
};

TEST_P(CollectiveGroup, GroupRanksFollowTheGivenOrder) {
  run(3, [](RankContext& self) {
    if (self.rank == 1) {
      return;
    }
    Communicator group = self.world.make_group("ends", {2, 0});
    EXPECT_EQ(group.rank(), self.rank == 2 ? 0 : 1);
    EXPECT_EQ(group.size(), 2);
    EXPECT_EQ(group.name(), "ends");
    EXPECT_EQ(group.backend(), GetParam() == "gloo" ? "gloo" : "shm");
    auto output = at::empty({2}, at::kLong);
    group.all_gather(output, at::full({1}, self.rank, at::kLong)).wait();
    EXPECT_TRUE(at::equal(output, torch::tensor({2, 0}, at::kLong)));
  });
}

TEST_P(CollectiveGroup, AWorkMayBeDroppedUnwaited) {
  run(2, [](RankContext& self) {
    Communicator group = self.world.group();
    group.all_reduce(at::ones({100}));
    auto one = at::ones({1});
    group.all_reduce(one).wait();
    EXPECT_EQ(one.item<float>(), 2);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Backend,
    CollectiveGroup,
    ::testing::Values("cpu", "gloo"),
    [](const auto& info) { return info.param; });

} // namespace
} // namespace weft::mesh
