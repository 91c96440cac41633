#include <functional>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mesh/communicator/communicator.h"
#include "mesh/world.h"
#include "tests/mesh/backends/shm/shm_values.h"
#include "tests/support/run_ranks.h"

namespace weft::mesh {
namespace {

using test::is_defined;
using test::kReduceOps;
using test::kReducibleDtypes;
using test::random_values;
using test::RankContext;
using test::run_ranks;
using test::same_bits;
using test::slot_elements;

using Counts = std::vector<int64_t>;

class ShmBackend : public ::testing::TestWithParam<int> {
 protected:
  /// Runs `body` on all ranks with a group over each backend.
  static void compare(
      const std::function<void(Communicator&, Communicator&, RankContext&)>&
          body) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    run_ranks(GetParam(), [&](RankContext& self) {
      Communicator shm = self.world.group();
      ASSERT_EQ(shm.backend(), "shm");
      WorldOptions options;
      options.backend = "gloo";
      options.timeout = std::chrono::seconds(30);
      const World other =
          World::from_store(store, self.rank, self.world_size, options);
      Communicator gloo = other.group();
      body(shm, gloo, self);
      gloo.barrier();
    });
  }
};

// gloo's all_reduce adds in rank order up to 256 KB received by a rank.
TEST_P(ShmBackend, AllReduceHasTheBitsOfGloo) {
  compare([](Communicator& shm, Communicator& gloo, RankContext& self) {
    for (const auto dtype : kReducibleDtypes) {
      for (const auto op : kReduceOps) {
        if (!is_defined(dtype, op)) {
          continue;
        }
        for (const int64_t count : {1, 17, 3001}) {
          auto ours = random_values(count, dtype, self.rank);
          auto theirs = ours.clone();
          shm.all_reduce(ours, op).wait();
          gloo.all_reduce(theirs, op).wait();
          EXPECT_TRUE(same_bits(ours, theirs))
              << dtype << " " << int(op) << " " << count;
        }
      }
    }
  });
}

// Its reduce_scatter adds so whatever the size.
TEST_P(ShmBackend, ReduceScatterHasTheBitsOfGloo) {
  compare([](Communicator& shm, Communicator& gloo, RankContext& self) {
    const int64_t n = self.world_size;
    for (const auto dtype : kReducibleDtypes) {
      for (const auto op : kReduceOps) {
        if (!is_defined(dtype, op)) {
          continue;
        }
        // The second is larger than a slot where the elements are.
        for (const int64_t count : {5, 70'001}) {
          const auto input = random_values(n * count, dtype, self.rank);
          auto ours = at::zeros({count}, dtype);
          auto theirs = at::ones({count}, dtype);
          shm.reduce_scatter(ours, input, op).wait();
          gloo.reduce_scatter(theirs, input, op).wait();
          EXPECT_TRUE(same_bits(ours, theirs))
              << dtype << " " << int(op) << " " << count;
        }
      }
    }
  });
}

std::vector<at::Tensor> zeros(const Counts& counts, at::ScalarType dtype) {
  std::vector<at::Tensor> parts;
  for (const int64_t count : counts) {
    parts.push_back(at::zeros({count}, dtype));
  }
  return parts;
}

// Parts of a slot, an element more and less, of many slots, and none.
std::vector<Counts> uneven_counts(int64_t ranks, int64_t slot) {
  std::vector<Counts> result;
  for (const Counts& some :
       {Counts{1, 0, 2, 3, 0},
        Counts{0, slot, 0, 0, 1},
        Counts{slot + 1, slot - 1, 0, 7, slot},
        Counts{3, 3 * slot + 5, 1, slot, 0}}) {
    result.emplace_back(some.begin(), some.begin() + ranks);
  }
  return result;
}

TEST_P(ShmBackend, UnevenPartsArriveAsOverGloo) {
  compare([](Communicator& shm, Communicator& gloo, RankContext& self) {
    const int64_t n = self.world_size;
    for (const auto dtype : {at::kFloat, at::kShort, at::kBool}) {
      for (const auto& counts : uneven_counts(n, slot_elements(dtype))) {
        SCOPED_TRACE(::testing::PrintToString(counts));
        const auto own = random_values(counts[self.rank], dtype, self.rank);
        auto ours = zeros(counts, dtype);
        auto theirs = zeros(counts, dtype);
        shm.all_gather_uneven(ours, own).wait();
        gloo.all_gather_uneven(theirs, own).wait();
        for (int64_t rank = 0; rank < n; ++rank) {
          EXPECT_TRUE(same_bits(ours[rank], theirs[rank]));
        }
        const auto all =
            random_values(
                std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                dtype,
                self.rank)
                .split_with_sizes(counts);
        auto our_sum = at::zeros({counts[self.rank]}, dtype);
        auto their_sum = at::ones({counts[self.rank]}, dtype);
        shm.reduce_scatter_uneven(our_sum, all).wait();
        gloo.reduce_scatter_uneven(their_sum, all).wait();
        EXPECT_TRUE(same_bits(our_sum, their_sum));
      }
    }
  });
}

// s sends r a part whose size says both; some are empty, some take many
// rounds, so that ranks need different numbers of them.
TEST_P(ShmBackend, AllToAllOfAnySizesIsAsOverGloo) {
  compare([](Communicator& shm, Communicator& gloo, RankContext& self) {
    const int64_t n = self.world_size;
    for (const int64_t scale : {1, 1000, 40'000}) {
      const auto count = [&](int64_t from, int64_t to) {
        return (from * 3 + to * 5) % 4 * scale + (from == to ? 1 : 0);
      };
      std::vector<at::Tensor> inputs;
      Counts counts;
      for (int64_t peer = 0; peer < n; ++peer) {
        inputs.push_back(random_values(
            count(self.rank, peer), at::kDouble, self.rank * 10 + peer));
        counts.push_back(count(peer, self.rank));
      }
      auto ours = zeros(counts, at::kDouble);
      auto theirs = zeros(counts, at::kDouble);
      shm.all_to_all(ours, inputs).wait();
      gloo.all_to_all(theirs, inputs).wait();
      for (int64_t peer = 0; peer < n; ++peer) {
        EXPECT_TRUE(same_bits(ours[peer], theirs[peer]));
        EXPECT_TRUE(same_bits(
            ours[peer],
            random_values(
                count(peer, self.rank), at::kDouble, peer * 10 + self.rank)));
      }
    }
  });
}

// The sum in double is exact next to what a float keeps: n terms cost at most
// n - 1 roundings of partial sums, each below the sum of the sizes. A half is
// rounded once more, from a sum in float.
TEST_P(ShmBackend, LargeSumsAreAsPreciseAsTheOrderAllows) {
  run_ranks(GetParam(), [](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    const int64_t count = 3 * slot_elements(at::kFloat) + 11;
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      auto exact = at::zeros({count}, at::kDouble);
      auto sizes = at::zeros({count}, at::kDouble);
      for (int64_t rank = 0; rank < n; ++rank) {
        const auto term = random_values(count, dtype, rank).to(at::kDouble);
        exact += term;
        sizes += term.abs();
      }
      auto sum = random_values(count, dtype, self.rank);
      group.all_reduce(sum).wait();
      const double in_float = std::ldexp(static_cast<double>(n - 1), -24);
      const int digits = dtype == at::kHalf ? 11 : 8;
      // Below the smallest normal number a half is off by a fixed step.
      const auto bound = dtype == at::kFloat
                             ? sizes * in_float
                             : sizes * in_float +
                                   exact.abs() * std::ldexp(1.01, -digits) +
                                   std::ldexp(1.0, -25);
      const auto off = (sum.to(at::kDouble) - exact).abs();
      EXPECT_TRUE((off <= bound).all().item<bool>()) << dtype;
    }
  });
}

// The bits of a sum depend on its terms alone: not on where they lie in a
// buffer, its length, whether the vectors' loop or its end took them, or how
// many rounds the buffer takes.
TEST_P(ShmBackend, AResultDoesNotDependOnItsPlace) {
  run_ranks(GetParam(), [](RankContext& self) {
    Communicator group = self.world.group();
    constexpr int64_t kCount = 131;
    for (const auto dtype : kReducibleDtypes) {
      const int64_t slot = slot_elements(dtype);
      const auto own = random_values(kCount, dtype, self.rank);
      for (const auto op : kReduceOps) {
        if (!is_defined(dtype, op)) {
          continue;
        }
        auto alone = own.clone();
        group.all_reduce(alone, op).wait();
        for (const int64_t offset : {int64_t{1}, int64_t{2047}, slot - 64}) {
          auto buffer = at::ones({offset + kCount + offset % 7}, dtype);
          buffer.narrow(0, offset, kCount).copy_(own);
          group.all_reduce(buffer, op).wait();
          EXPECT_TRUE(same_bits(buffer.narrow(0, offset, kCount), alone))
              << dtype << " " << int(op) << " at " << offset;
        }
      }
    }
  });
}

TEST_P(ShmBackend, SizesAroundASlotAreMovedWhole) {
  run_ranks(GetParam(), [](RankContext& self) {
    Communicator group = self.world.group();
    const int64_t n = self.world_size;
    const int64_t slot = slot_elements(at::kFloat);
    const int64_t lane = slot / n;
    for (const int64_t count :
         {int64_t{1},
          int64_t{3},
          lane - 1,
          lane,
          lane + 1,
          slot - 1,
          slot,
          slot + 1,
          2 * slot,
          5 * slot + 7}) {
      SCOPED_TRACE(count);
      const auto ramp = at::arange(count).remainder(97).to(at::kFloat);
      auto sum = ramp + self.rank;
      group.all_reduce(sum).wait();
      EXPECT_TRUE(at::equal(sum, ramp * n + n * (n - 1) / 2));
      auto gathered = at::zeros({n, count});
      group.all_gather(gathered, ramp + self.rank).wait();
      auto part = at::zeros({count});
      group.reduce_scatter(part, gathered).wait();
      EXPECT_TRUE(at::equal(part, (ramp + self.rank) * n));
      for (int64_t rank = 0; rank < n; ++rank) {
        EXPECT_TRUE(at::equal(gathered[rank], ramp + rank));
      }
      auto everywhere = ramp + self.rank;
      group.broadcast(everywhere, n - 1).wait();
      EXPECT_TRUE(at::equal(everywhere, ramp + (n - 1)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ShmBackend,
    ::testing::Values(2, 3, 4, 5),
    ::testing::PrintToStringParamName());

TEST(ShmBackendGroup, GlooTakesOverWhereItIsAskedFor) {
  run_ranks(
      2,
      [](RankContext& self) {
        EXPECT_EQ(self.world.group().backend(), "gloo");
      },
      std::chrono::seconds(30),
      "gloo");
}

} // namespace
} // namespace weft::mesh
