#include "data_parallel/replicas/replica_difference.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::data_parallel {
namespace {

using test::entries_named;
using test::message_of_thrown;
using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<NamedTensor> some_tensors() {
  return {
      {"a", wave({3, 5}, 0.1)},
      {"b", wave({7}, 0.2, at::kFloat)},
      {"c", at::arange(5)},
      {"d", wave({0, 4}, 0.3)},
      {"e", at::tensor({1, 0}).to(at::kBool)},
      {"f", wave({4, 6}, 0.4, at::kBFloat16).t()}};
}

class ReplicaDifferenceTest : public ::testing::TestWithParam<int> {};

TEST_P(ReplicaDifferenceTest, EqualReplicasSendOneSmallMessage) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto dp = self.mesh({self.world_size}, {"dp"});
    auto& flight_recorder = dp.group("dp").flight_recorder();
    flight_recorder.reset();
    EXPECT_FALSE(find_replica_difference(some_tensors(), dp));
    const auto entries = flight_recorder.entries();
    ASSERT_EQ(entries.size(), self.world_size > 1 ? 1U : 0U);
    for (const auto& entry : entries) {
      EXPECT_EQ(entry.op, "all_reduce");
      EXPECT_EQ(entry.bytes, 24);
    }
    EXPECT_FALSE(find_replica_difference({}, dp));
  });
}

TEST_P(ReplicaDifferenceTest, TheFirstTensorThatDiffersIsMeasured) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto dp = self.mesh({n}, {"dp"});
    auto tensors = some_tensors();
    if (self.rank == n - 1) {
      tensors[1].tensor[3] += 0.25;
      tensors[2].tensor[0] += 7;
    }
    const auto found = find_replica_difference(tensors, dp);
    if (n == 1) {
      EXPECT_FALSE(found);
      return;
    }
    ASSERT_TRUE(found);
    EXPECT_EQ(found->name, "b");
    EXPECT_EQ(found->index, 1U);
    EXPECT_EQ(found->first_rank, 0);
    EXPECT_THAT(found->ranks, ElementsAre(n - 1));
    EXPECT_EQ(found->has_majority, n > 2) << "of two no one is most";
    EXPECT_NEAR(found->largest, 0.25, 1e-6);
    EXPECT_THAT(found->nan_ranks, IsEmpty());
  });
}

TEST_P(ReplicaDifferenceTest, NamesTheDeviatingRankOfThree) {
  run_ranks(GetParam(), [](RankContext& self) {
    if (self.world_size < 3) {
      return;
    }
    const auto dp = self.mesh({self.world_size}, {"dp"});
    auto tensors = some_tensors();
    if (self.rank == 0) {
      tensors[4].tensor[1] = true;
    }
    const auto found = find_replica_difference(tensors, dp);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->name, "e");
    EXPECT_EQ(found->first_rank, 1);
    EXPECT_THAT(found->ranks, ElementsAre(0));
    EXPECT_TRUE(found->has_majority);
    EXPECT_EQ(found->largest, 1.0);
  });
}

TEST_P(ReplicaDifferenceTest, WhereAllDifferAllButTheFirstAreNamed) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto dp = self.mesh({n}, {"dp"});
    auto tensors = some_tensors();
    tensors[2].tensor[4] += 2 * self.rank;
    const auto found = find_replica_difference(tensors, dp);
    ASSERT_EQ(found.has_value(), n > 1);
    if (found) {
      std::vector<int64_t> others;
      for (int64_t rank = 1; rank < n; ++rank) {
        others.push_back(rank);
      }
      EXPECT_EQ(found->name, "c");
      EXPECT_EQ(found->ranks, others);
      EXPECT_FALSE(found->has_majority);
      EXPECT_EQ(found->largest, 2.0 * static_cast<double>(n - 1));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    ReplicaDifferenceTest,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

/// The difference of two ranks, the second of which has `other`.
ReplicaDifference difference_of_two(
    const at::Tensor& first,
    const at::Tensor& other) {
  std::optional<ReplicaDifference> found;
  run_ranks(2, [&](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    auto own = find_replica_difference(
        {{"x", (self.rank == 0 ? first : other).clone()}}, dp);
    if (self.rank == 0) {
      found = std::move(own);
    }
  });
  EXPECT_TRUE(found);
  return found.value_or(ReplicaDifference{});
}

TEST(ReplicaDifferenceValues, ANanIsNamedBesideTheDifferenceOfTheRest) {
  const auto found =
      difference_of_two(at::tensor({1.0, 2.0}), at::tensor({1.5, kNan}));
  EXPECT_EQ(found.largest, 0.5);
  EXPECT_THAT(found.nan_ranks, ElementsAre(1));
  EXPECT_THAT(
      difference_of_two(at::tensor({kNan, 2.0}), at::tensor({1.0, 2.0}))
          .nan_ranks,
      ElementsAre(0));
}

TEST(ReplicaDifferenceValues, AnInfinityIsInfinitelyFar) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto found = difference_of_two(
      at::tensor({infinity, 2.0}), at::tensor({infinity, infinity}));
  EXPECT_EQ(found.largest, infinity);
  EXPECT_THAT(found.nan_ranks, IsEmpty());
}

TEST(ReplicaDifferenceValues, BitsCount) {
  EXPECT_EQ(
      difference_of_two(at::tensor({0.0}), at::tensor({-0.0})).largest, 0.0);
  EXPECT_EQ(
      difference_of_two(at::ones({1}, at::kBool), at::zeros({1}, at::kBool))
          .largest,
      1.0);
  EXPECT_EQ(
      difference_of_two(
          at::tensor({c10::complex<double>(1, 2)}),
          at::tensor({c10::complex<double>(1, 5)}))
          .largest,
      3.0);
}

TEST(ReplicaDifferenceValues, EachElementAndItsPlaceCount) {
  const auto first = at::arange(19, at::kFloat);
  for (int64_t i = 0; i < first.numel(); ++i) {
    auto other = first.clone();
    other[i] += 1;
    EXPECT_EQ(difference_of_two(first, other).largest, 1.0) << i;
  }
  EXPECT_EQ(difference_of_two(first, first.flip(0)).largest, 18.0);
}

TEST(ReplicaDifference, OnATwoDimMeshAllRanksLearnOfIt) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto weights = [&] {
      return std::vector<NamedTensor>{
          {"plain", wave({3}, 0.1)},
          {"cut",
           dtensor::distribute_tensor(
               wave({6, 4}, 0.2), mesh["tp"], {dtensor::Shard(0)})}};
    };
    EXPECT_FALSE(find_replica_difference(weights(), mesh["dp"]));
    auto tensors = weights();
    if (self.rank == 3) { // dp=1 tp=1
      local_part(tensors[1].tensor)[0][1] += 0.5;
    }
    const auto found = find_replica_difference(tensors, mesh["dp"]);
    ASSERT_TRUE(found) << "rank " << self.rank;
    EXPECT_EQ(found->name, "cut");
    EXPECT_EQ(found->first_rank, 1);
    EXPECT_THAT(found->ranks, ElementsAre(3));
    EXPECT_NEAR(found->largest, 0.5, 1e-12);
    if (self.rank == 2) { // dp=1 tp=0: an earlier tensor
      tensors[0].tensor[2] = kNan;
    }
    const auto first = find_replica_difference(tensors, mesh["dp"]);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->name, "plain");
    EXPECT_EQ(first->first_rank, 0);
    EXPECT_THAT(first->ranks, ElementsAre(2));
    EXPECT_THAT(first->nan_ranks, ElementsAre(2));
  });
}

TEST(ReplicaDifference, CopiesOverOtherMeshDimsCountToo) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({1, 4}, {"dp", "tp"});
    std::vector<NamedTensor> tensors{
        {"own", at::full({2}, self.rank)},
        {"cut",
         dtensor::distribute_tensor(
             wave({8, 4}, 0.2), mesh["tp"], {dtensor::Shard(0)})},
        {"whole",
         dtensor::distribute_tensor(
             wave({5}, 0.3), mesh["tp"], {dtensor::Replicate()})}};
    EXPECT_FALSE(find_replica_difference(tensors, mesh["dp"]));
    if (self.rank == 2) {
      local_part(tensors[2].tensor)[4] += 0.5;
    }
    const auto found = find_replica_difference(tensors, mesh["dp"]);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->name, "whole");
    EXPECT_EQ(found->first_rank, 0);
    EXPECT_THAT(found->ranks, ElementsAre(2));
    EXPECT_TRUE(found->has_majority);
    EXPECT_NEAR(found->largest, 0.5, 1e-12);
  });
}

TEST(ReplicaDifference, OtherTensorsAreRefusedByName) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    auto tensors = some_tensors();
    if (self.rank == 1) {
      tensors[1].tensor = wave({8}, 0.2, at::kFloat);
    }
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { (void)find_replica_difference(tensors, dp); }),
        AllOf(HasSubstr("b [7] Float"), HasSubstr("b [8] Float")));
  });
}

struct Normed : torch::nn::Module {
  Normed()
      : body(register_module("body", torch::nn::Linear(6, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))) {
    test::fill_parameters(*this);
  }
  torch::nn::Linear body;
  torch::nn::BatchNorm1d norm;
};

TEST(CheckReplicasEqual, NamesParameterModuleRanksAndSize) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    const Normed model;
    check_replicas_equal(model, dp);
    const at::NoGradGuard no_grad;
    if (self.rank == 0) {
      model.body->bias[1] += 0.5;
    }
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { check_replicas_equal(model, dp); }),
        AllOf(
            HasSubstr("parameter body.bias of body (Linear) has other values "
                      "on rank 0 than on rank 1; the largest difference is "
                      "0.5. "),
            HasSubstr("rank " + std::to_string(self.rank) + "/3, mesh dp=3")));
    check_replicas_equal(model, dp, {"body.bias"});
    if (self.rank == 2) {
      model.norm->running_mean[0] = kNan;
    }
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>(
            [&] { check_replicas_equal(model, dp, {"body.bias"}); }),
        HasSubstr("buffer norm.running_mean of norm (BatchNorm1d) has other "
                  "values on rank 2 than on rank 0; the largest difference is "
                  "0, and it holds a NaN on rank 2. "));
  });
}

} // namespace
} // namespace weft::data_parallel
