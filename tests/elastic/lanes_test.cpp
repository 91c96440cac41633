#include "elastic/lanes.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mesh/communicator/reduction.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::elastic {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

using Bools = std::vector<bool>;

TEST(Lanes, AreDividedAmongTheGroupsThatCount) {
  Lanes lanes(7);
  EXPECT_TRUE(lanes.are_used());
  const Bools counts = {true, false, true, true};
  lanes.divide(counts, 0);
  EXPECT_THAT(lanes.own(), Pair(0, 2));
  lanes.divide(counts, 1); // It computes, and nothing is added.
  EXPECT_THAT(lanes.own(), Pair(0, 1));
  lanes.divide(counts, 2);
  EXPECT_THAT(lanes.own(), Pair(2, 4));
  lanes.divide(counts, 3);
  EXPECT_THAT(lanes.own(), Pair(4, 7));
  EXPECT_FALSE(Lanes(0).are_used());
}

TEST(Lanes, AreEnteredOnceAndInOrder) {
  Lanes lanes(4);
  lanes.divide({true, true}, 1);
  lanes.begin_step();
  lanes.check_complete(); // A step without gradients.
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { lanes.enter(3); }),
      HasSubstr("Lane 3 was entered, but the next one of this group is 2. "
                "Enter each lane of Step::lanes(), here [2, 4), once and in "
                "order"));
  lanes.enter(2);
  EXPECT_TRUE(lanes.is_inside());
  lanes.leave();
  EXPECT_FALSE(lanes.is_inside());
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { lanes.check_complete(); }),
      HasSubstr("The step ends, but lane 3 was not entered"));
  lanes.enter(3);
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { lanes.enter(3); }),
      HasSubstr("Lane 3 was entered in lane 3. Destroy the result of "
                "Step::enter_lane() before the next one"));
  lanes.leave();
  lanes.check_complete();
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { lanes.enter(4); }),
      HasSubstr("the next one of this group is in the next step"));
}

TEST(Lanes, AreAtLeastAsManyAsGroups) {
  Lanes lanes(2);
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        lanes.divide({true, true, false}, 0);
      }),
      HasSubstr("lanes: got 2, expected at least one per replica group, of "
                "which there are 3"));
}

/// What a lane has: of sizes so different that the order of additions shows.
at::Tensor of_lane(int64_t lane, int64_t size, c10::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(lane * 1000 + size));
  const auto values =
      at::randn({size}, generator) * (at::randn({size}, generator) * 8).exp2();
  return values.to(dtype);
}

at::Tensor
in_order(int64_t lanes, int64_t size, c10::ScalarType dtype, int64_t shift) {
  std::vector<at::Tensor> rows;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    rows.push_back(of_lane((lane + shift) % lanes, size, dtype));
  }
  auto result = at::empty({size}, at::TensorOptions().dtype(dtype));
  if (size > 0) {
    mesh::reduce_rows(result, at::stack(rows), mesh::ReduceOp::kSum);
  }
  return result;
}

/// Adds the lanes on the ranks of a group, in which those that count are
/// `true`.
void expect_sums(
    RankContext& self,
    int64_t count,
    const Bools& counts,
    const std::vector<int64_t>& sizes,
    c10::ScalarType dtype) {
  Lanes lanes(count);
  lanes.divide(counts, self.rank);
  for (int step = 0; step < 2; ++step) {
    lanes.begin_step();
    std::vector<at::Tensor> sums;
    std::vector<std::function<void()>> waits;
    const auto [begin, end] = lanes.own();
    for (int64_t lane = begin; lane < end; ++lane) {
      lanes.enter(lane);
      sums.clear();
      for (const auto size : sizes) {
        auto own = of_lane(lane, size, dtype);
        if (size % 2 == 0) { // not contiguous
          own = own.view({2, -1}).t().contiguous().t();
        }
        sums.push_back(own);
        auto group = self.world.group();
        waits.push_back(lanes.start_sum(group, own, "gradient", [&] {
          auto work = group.broadcast(
              own, std::ranges::find(counts, true) - counts.begin(), "sum");
          return [work]() mutable { work.wait(); };
        }));
      }
      lanes.leave();
    }
    for (const auto& wait : waits) {
      wait();
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_TRUE(
          at::equal(sums[i].reshape(-1), in_order(count, sizes[i], dtype, 0)))
          << sizes[i] << " of " << dtype;
    }
  }
}

void add_on_any_ranks(const std::string& backend) {
  // The samples show the order.
  ASSERT_FALSE(at::equal(
      in_order(5, 1000, at::kFloat, 0), in_order(5, 1000, at::kFloat, 1)));
  const std::vector<int64_t> sizes = {0, 1, 2, 3, 1000, 100'001};
  for (const auto& counts :
       {Bools{true},
        Bools{true, true},
        Bools{false, true},
        Bools{true, true, true},
        Bools{true, false, true, false}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      run_ranks(
          static_cast<int>(counts.size()),
          [&](RankContext& self) {
            expect_sums(self, 5, counts, sizes, dtype);
          },
          std::chrono::seconds(30),
          backend);
    }
  }
}

TEST(Lanes, AreAddedInTheirOrderWhicheverRankHasThem) {
  add_on_any_ranks("cpu");
}

TEST(Lanes, AreAddedInTheirOrderOverGloo) {
  add_on_any_ranks("gloo");
}

void add_one_of_each_rank(const std::string& backend) {
  run_ranks(
      3,
      [](RankContext& self) {
        expect_sums(
            self, 3, {true, true, true}, {0, 1, 6, 100'001}, at::kFloat);
      },
      std::chrono::seconds(30),
      backend);
}

// Over shared memory they are those of an all_reduce.
TEST(Lanes, AreAddedInTheirOrderWithOneOfEachRank) {
  add_one_of_each_rank("cpu");
}

TEST(Lanes, AreAddedInTheirOrderWithOneOfEachRankOverGloo) {
  add_one_of_each_rank("gloo");
}

TEST(Lanes, HaveTheSameTensors) {
  run_ranks(1, [](RankContext& self) {
    Lanes lanes(3);
    lanes.divide({true}, 0);
    lanes.begin_step();
    const auto add = [&](const at::Tensor& tensor, std::string_view name) {
      return lanes.start_sum(self.world.group(), tensor, name, [] {
        return [] {}; // To nobody.
      });
    };
    for (const int64_t lane : {0, 1}) {
      lanes.enter(lane);
      add(at::ones({2}), "weight")();
      if (lane == 0) {
        add(at::ones({2}), "bias")();
        add(at::ones({2}), "scale")();
      }
      lanes.leave();
    }
    lanes.enter(2);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { add(at::ones({3}), "weight"); }),
        HasSubstr("A lane has 2 elements of Float, but lane 2 has 3 of "
                  "Float"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { add(at::ones({2}), "bias"); }),
        HasSubstr("It is added in lane 2, but in 1 of 2 earlier lanes of this "
                  "group. Add the same tensors in each lane. (bias)"));
    lanes.leave();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { lanes.check_complete(); }),
        HasSubstr("\"scale\" was added in an earlier lane, but not in lane 2, "
                  "the last one of this group"));
  });
}

} // namespace
} // namespace weft::elastic
