#include <latch>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mesh/backends/hierarchical_backend.h"
#include "mesh/communicator/communicator.h"
#include "mesh/error/error.h"
#include "mesh/world.h"
#include "tests/support/expect_error.h"

namespace weft::mesh {
namespace {

// The host of every rank.
using Hosts = std::vector<std::string>;

// Runs `body` on threads that take themselves for ranks of several hosts.
void run_on_hosts(
    const Hosts& hosts,
    const std::function<void(Communicator, const World&)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    store->set(
        "weft/shm_domain/" + std::to_string(rank),
        std::vector<uint8_t>(hosts[rank].begin(), hosts[rank].end()));
  }
  WorldOptions options;
  options.timeout = std::chrono::seconds(30);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      SCOPED_TRACE("rank " + std::to_string(rank));
      const auto world = World::from_store(
          store,
          static_cast<int64_t>(rank),
          static_cast<int64_t>(hosts.size()),
          options);
      try {
        body(world.group(), world);
      } catch (const c10::Error& error) {
        ADD_FAILURE() << error.what_without_backtrace();
        world.abort();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

class OnHosts : public ::testing::TestWithParam<Hosts> {};

// Exact in every dtype: small integers.
at::Tensor small_values(int64_t count, int64_t rank, at::ScalarType dtype) {
  return ((at::arange(count) + rank) % 7).to(dtype);
}

at::Tensor sum_of_ranks(int64_t count, int64_t ranks) {
  auto sum = at::zeros({count}, at::kLong);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    sum += small_values(count, rank, at::kLong);
  }
  return sum;
}

constexpr std::array kReducedDtypes{at::kFloat, at::kBFloat16, at::kLong};
constexpr std::array<int64_t, 2> kCounts{5, 200'003};

TEST_P(OnHosts, ReducesAndScatters) {
  run_on_hosts(GetParam(), [](Communicator group, const World&) {
    EXPECT_EQ(group.backend(), "shm+gloo");
    const int64_t n = group.size();
    for (const auto dtype : kReducedDtypes) {
      for (const int64_t count : kCounts) {
        const auto expected = sum_of_ranks(count, n);
        auto sum = small_values(count, group.rank(), dtype);
        group.all_reduce(sum).wait();
        EXPECT_TRUE(at::equal(sum, expected.to(dtype)));
        auto most = small_values(count, group.rank(), dtype);
        group.all_reduce(most, ReduceOp::kMax).wait();
        EXPECT_LE(most.max().item<int64_t>(), 6);

        // Rank 1 gets nothing.
        std::vector<int64_t> sizes(n, count / n);
        sizes[0] += count - n * (count / n) + sizes[1];
        sizes[1] = 0;
        const auto inputs =
            small_values(count, group.rank(), dtype).split_with_sizes(sizes);
        auto part = at::empty({sizes[group.rank()]}, dtype);
        group.reduce_scatter_uneven(part, inputs).wait();
        EXPECT_TRUE(at::equal(
            part, expected.to(dtype).split_with_sizes(sizes)[group.rank()]));
      }
    }
    auto mean = at::full({3}, 2.0 * group.rank());
    group.all_reduce(mean, ReduceOp::kAvg).wait();
    EXPECT_TRUE(at::allclose(mean, at::full({3}, n - 1.0)));
    auto mean_part = at::empty({2});
    group
        .reduce_scatter(
            mean_part, at::full({2 * n}, 2.0 * group.rank()), ReduceOp::kAvg)
        .wait();
    EXPECT_TRUE(at::allclose(mean_part, at::full({2}, n - 1.0)));
  });
}

TEST_P(OnHosts, GathersSpreadsAndExchanges) {
  run_on_hosts(GetParam(), [](Communicator group, const World&) {
    const int64_t n = group.size();
    for (const int64_t count : kCounts) {
      auto output = at::empty({n, count});
      group.all_gather(output, small_values(count, group.rank(), at::kFloat))
          .wait();
      std::vector<at::Tensor> uneven;
      for (int64_t rank = 0; rank < n; ++rank) {
        EXPECT_TRUE(
            at::equal(output[rank], small_values(count, rank, at::kFloat)));
        uneven.push_back(at::empty({rank * 3}, at::kLong));
      }
      group
          .all_gather_uneven(
              uneven, small_values(3 * group.rank(), group.rank(), at::kLong))
          .wait();
      for (int64_t rank = 0; rank < n; ++rank) {
        EXPECT_TRUE(
            at::equal(uneven[rank], small_values(3 * rank, rank, at::kLong)));
        auto everywhere = small_values(count, group.rank(), at::kShort);
        group.broadcast(everywhere, rank).wait();
        EXPECT_TRUE(
            at::equal(everywhere, small_values(count, rank, at::kShort)));
      }
    }
    std::vector<at::Tensor> sent;
    std::vector<at::Tensor> received;
    for (int64_t rank = 0; rank < n; ++rank) {
      sent.push_back(at::full({rank}, group.rank()));
      received.push_back(at::empty({group.rank()}, at::kLong));
    }
    group.all_to_all(received, sent).wait();
    for (int64_t rank = 0; rank < n; ++rank) {
      EXPECT_TRUE(at::equal(received[rank], at::full({group.rank()}, rank)));
    }
    group.barrier();
  });
}

TEST_P(OnHosts, WaitsMayComeInAnyOrder) {
  run_on_hosts(GetParam(), [](Communicator group, const World&) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int64_t i = 0; i < 12; ++i) {
      tensors.push_back(at::full({5000}, i + group.rank(), at::kLong));
      works.push_back(group.all_reduce(tensors.back()));
    }
    const int64_t n = group.size();
    for (int64_t i = 0; i < 12; ++i) {
      works[group.rank() % 2 == 0 ? i : 11 - i].wait();
    }
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_TRUE(at::equal(
          tensors[i], at::full({5000}, i * n + n * (n - 1) / 2, at::kLong)));
    }
  });
}

TEST_P(OnHosts, AnAbortEndsWhatIsUnderWay) {
  std::latch connected(static_cast<std::ptrdiff_t>(GetParam().size()));
  run_on_hosts(GetParam(), [&](Communicator group, const World& world) {
    connected.arrive_and_wait();
    if (group.rank() == 0) {
      world.abort();
      return;
    }
    EXPECT_THROW(group.all_reduce(at::ones({8})).wait(), CommError);
    world.abort();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    OnHosts,
    ::testing::Values(
        Hosts{"a", "a", "b"},
        Hosts{"a", "b", "b"},
        Hosts{"a", "a", "b", "b"},
        Hosts{"a", "b", "a", "b"},
        Hosts{"a", "b", "c", "b", "a"}),
    [](const auto& info) {
      std::string name;
      for (const auto& host : info.param) {
        name += host;
      }
      return name;
    });

TEST(HostLayout, HostsComeInTheOrderOfTheirFirstMember) {
  const auto layout = HostLayout::of({"y", "x", "y", "x", "x"}, 3);
  EXPECT_THAT(
      layout.hosts,
      ::testing::ElementsAre(
          ::testing::ElementsAre(0, 2), ::testing::ElementsAre(1, 3, 4)));
  EXPECT_EQ(layout.own_host, 1);
  EXPECT_EQ(layout.own_position, 1);
}

TEST(HostLayout, RanksThatAreAloneOnTheirHostsUseSocketsOnly) {
  run_on_hosts({"a", "b"}, [](Communicator group, const World&) {
    EXPECT_EQ(group.backend(), "gloo");
    group.barrier();
  });
}

} // namespace
} // namespace weft::mesh
