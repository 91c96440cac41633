// What replicas have alike before they train: structure, values, buffers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::entries_named;
using test::expect_all_close;
using test::message_of_thrown;
using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::HasSubstr;

class ReplicasTest : public ::testing::TestWithParam<int> {};

TEST_P(ReplicasTest, StartFromTheFirstOnesParametersAndBuffers) {
  run_ranks(GetParam(), [](RankContext& self) {
    torch::nn::Sequential model(
        torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
    test::fill_parameters(*model, 0.3 + static_cast<double>(self.rank));
    const auto norm = model[1]->as<torch::nn::BatchNorm1d>();
    norm->running_mean.fill_(static_cast<double>(self.rank));
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    torch::nn::Sequential expected(
        torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
    test::fill_parameters(*expected);
    expect_all_close(model->parameters(), expected->parameters(), 0.0);
    EXPECT_EQ(norm->running_mean.abs().max().item<double>(), 0.0);
  });
}

TEST_P(ReplicasTest, KeepTheirValuesWithoutInitSync) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    test::fill_parameters(*model, static_cast<double>(self.rank));
    const auto before = model->a->weight.detach().clone();
    DistributedDataParallel ddp(model, mesh, {.init_sync = false});
    EXPECT_TRUE(at::equal(model->a->weight, before));
    EXPECT_TRUE(mesh.group("dp").flight_recorder().entries().empty());
  });
}

TEST_P(ReplicasTest, GetTheFirstOnesBuffersBeforeATrainingForward) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto mesh = self.mesh({n}, {"dp"});
    for (const bool broadcasts : {true, false}) {
      torch::nn::Sequential model(
          torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
      test::fill_parameters(*model);
      auto* norm = model[1]->as<torch::nn::BatchNorm1d>();
      DistributedDataParallel ddp(
          model, mesh, {.broadcast_buffers = broadcasts});
      const auto mean_after_forward = [&] {
        norm->running_mean.fill_(static_cast<double>(self.rank));
        mesh.group("dp").flight_recorder().reset();
        (void)ddp(wave({4, 6}, 0.1, at::kFloat));
        return norm->running_mean[0].item<double>();
      };
      const auto own = static_cast<double>(self.rank);
      norm->options.momentum(0.0);
      EXPECT_EQ(mean_after_forward(), broadcasts ? 0.0 : own);
      EXPECT_EQ(
          entries_named(mesh.group("dp"), "ddp buffers").size(),
          broadcasts ? 2 : 0);
      {
        // The first of those that are accumulated, and no other.
        const auto guard = ddp.no_sync();
        EXPECT_EQ(mean_after_forward(), broadcasts ? 0.0 : own);
        EXPECT_EQ(mean_after_forward(), own);
      }
      EXPECT_EQ(mean_after_forward(), own);
      EXPECT_EQ(mean_after_forward(), broadcasts ? 0.0 : own);
      {
        const at::NoGradGuard no_grad;
        EXPECT_EQ(mean_after_forward(), own);
      }
      model->eval();
      EXPECT_EQ(mean_after_forward(), own);
    }
  });
}

TEST_P(ReplicasTest, AForwardWithoutBuffersCommunicatesNothing) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    DistributedDataParallel ddp(std::make_shared<Mlp>(), mesh);
    mesh.group("dp").flight_recorder().reset();
    (void)ddp(wave({4, 6}, 0.1));
    EXPECT_TRUE(mesh.group("dp").flight_recorder().entries().empty());
  });
}

struct Odd : torch::nn::Module {
  Odd(bool is_odd, int what) {
    register_parameter("first", wave({2, 3}, 0.1));
    const bool changed = is_odd;
    register_parameter(
        changed && what == 0 ? "renamed" : "second",
        wave({4, changed && what == 1 ? 5 : 4}, 0.2)
            .to(changed && what == 2 ? at::kFloat : at::kDouble),
        !(changed && what == 3));
    if (changed && what == 4) {
      register_parameter("third", wave({1}, 0.3));
    }
    register_buffer("steps", at::zeros({changed && what == 5 ? 2 : 1}));
  }
};

TEST_P(ReplicasTest, ThatDifferAreRefusedOnEveryRankNamingTheDifference) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto mesh = self.mesh({n}, {"dp"});
    const bool is_odd = self.rank == n - 1;
    const std::vector<std::pair<std::string, std::string>> expected{
        {"parameter second [4, 4] Double", "parameter renamed [4, 4] Double"},
        {"parameter second [4, 4] Double", "parameter second [4, 5] Double"},
        {"parameter second [4, 4] Double", "parameter second [4, 4] Float"},
        {"parameter second [4, 4] Double",
         "parameter second [4, 4] Double on cpu frozen"},
        {"buffer steps [1] Float", "parameter third [1] Double"},
        {"buffer steps [1] Float", "buffer steps [2] Float"}};
    for (int what = 0; what < 6; ++what) {
      auto model = std::make_shared<Odd>(is_odd, what);
      const auto message = message_of_thrown<mesh::DisagreementError>(
          [&] { DistributedDataParallel<Odd> ddp(model, mesh); });
      EXPECT_THAT(message, HasSubstr("rank 0 has " + expected[what].first));
      EXPECT_THAT(
          message,
          HasSubstr(
              "rank " + std::to_string(n - 1) + " has " +
              expected[what].second));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    ReplicasTest,
    ::testing::Values(2, 3, 4),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::ddp
