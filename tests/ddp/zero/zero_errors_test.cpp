// What the sharded optimizer refuses, and how parameters are divided.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/joinable_optimizer.h"
#include "ddp/reducer/optimizer_in_backward.h"
#include "ddp/zero/partition.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/ddp/zero/zero_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::message_of_thrown;
using test::ParamGroups;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor leaf(at::IntArrayRef sizes) {
  return wave(sizes, 0.1, at::kFloat).requires_grad_();
}

template <class E = c10::ValueError>
std::string zero_error(
    std::vector<at::Tensor> parameters,
    const mesh::DeviceMesh& mesh,
    ZeroRedundancyOptimizerOptions options = {}) {
  return message_of_thrown<E>([&] {
    make_zero<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.1), mesh, options);
  });
}

TEST(ZeroErrors, NameTheParameterAndComeBeforeAnythingIsSent) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto dp = mesh["dp"];
    EXPECT_THAT(
        zero_error({leaf({2})}, mesh),
        AllOf(
            HasSubstr("got 2 mesh dims, expected 1"),
            HasSubstr("Pass a slice")));
    EXPECT_THAT(zero_error({}, dp), HasSubstr("no parameters were given"));
    EXPECT_THAT(
        zero_error({leaf({2}), at::Tensor()}, dp),
        HasSubstr("parameter 1 is undefined"));
    EXPECT_THAT(
        zero_error({leaf({2}), leaf({3}) * 2}, dp),
        AllOf(HasSubstr("group 0 parameter 1 [3]"), HasSubstr("not a leaf")));
    const auto twice = leaf({4});
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{leaf({2})});
    groups.emplace_back(std::vector<at::Tensor>{twice, leaf({2}), twice});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          make_zero<torch::optim::SGD>(
              groups, torch::optim::SGDOptions(0.1), dp);
        }),
        AllOf(HasSubstr("parameter 2 [4]"), HasSubstr("was given twice")));
    EXPECT_THAT(
        zero_error({leaf({3}).detach().to_sparse()}, dp),
        HasSubstr("is sparse"));
    at::Tensor deferred;
    {
      const dtensor::DeferredInit scope;
      deferred = torch::randn({4});
    }
    EXPECT_THAT(zero_error({deferred}, dp), HasSubstr("materialize"));
    const auto fused = leaf({2});
    const auto in_backward = apply_optimizer_in_backward(
        [](auto p) {
          return std::make_unique<torch::optim::SGD>(std::move(p), 0.1);
        },
        {fused});
    EXPECT_THAT(
        zero_error({fused}, dp),
        HasSubstr("has an optimizer that steps in backward"));
    const auto on_dp = dtensor::distribute_tensor(
        leaf({4}), dp, {dtensor::Shard(0)}, std::nullopt);
    EXPECT_THAT(
        zero_error({on_dp}, dp),
        HasSubstr("includes the replicas' mesh dim \"dp\""));
    const auto elsewhere = dtensor::distribute_tensor(
        leaf({4}),
        self.mesh({4}, {"other"}),
        {dtensor::Shard(0)},
        std::nullopt);
    EXPECT_THAT(
        zero_error({elsewhere}, dp), HasSubstr("one DeviceMesh::create()"));
    EXPECT_THAT(
        zero_error({leaf({2})}, dp, {.bucket_cap_mb = 0}),
        HasSubstr("bucket_cap_mb is 0"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          make_zero<torch::optim::LBFGS>(
              std::vector<at::Tensor>{leaf({2})},
              torch::optim::LBFGSOptions(0.1),
              dp);
        }),
        HasSubstr("LBFGS cannot be sharded"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          ZeroRedundancyOptimizer optimizer(
              ParamGroups{{{leaf({2})}}}, nullptr, dp);
        }),
        HasSubstr("the factory is empty"));
    EXPECT_EQ(dp.group("dp").flight_recorder().entries().size(), 0U);
  });
}

TEST(ZeroErrors, NameWhereTheReplicasDiffer) {
  run_ranks(3, [](RankContext& self) {
    const auto dp = self.mesh({3}, {"dp"});
    EXPECT_THAT(
        zero_error<mesh::DisagreementError>(
            {leaf({2}), leaf({self.rank == 2 ? 5 : 4})}, dp),
        AllOf(
            HasSubstr("rank 0 has group 0 parameter 1 [4]"),
            HasSubstr("rank 2 has group 0 parameter 1 [5]")));
    EXPECT_THAT(
        zero_error<mesh::DisagreementError>(
            {leaf({2})},
            dp,
            {.partition = self.rank == 1 ? ZeroPartition::kEvenSplit
                                         : ZeroPartition::kWholeParameters}),
        AllOf(HasSubstr("kWholeParameters"), HasSubstr("kEvenSplit")));
    // An added group is compared when it is first used.
    const auto optimizer = make_zero<torch::optim::SGD>(
        std::vector<at::Tensor>{leaf({2})}, torch::optim::SGDOptions(0.1), dp);
    optimizer->add_param_group(std::vector<at::Tensor>{leaf({1 + self.rank})});
    EXPECT_THAT(
        message_of_thrown<mesh::DisagreementError>([&] { optimizer->step(); }),
        HasSubstr("group 1 parameter 0 [1]"));
  });
}

TEST(ZeroErrors, SparseGradientsNeedWholeParameters) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    for (const auto partition :
         {ZeroPartition::kEvenSplit, ZeroPartition::kWholeParameters}) {
      auto parameter = leaf({4, 3});
      auto plain = leaf({4, 3});
      const auto sgd = torch::optim::SGDOptions(0.1);
      const auto optimizer = make_zero<torch::optim::SGD>(
          std::vector<at::Tensor>{parameter},
          sgd,
          dp,
          {.partition = partition});
      const auto gradient = at::eye(4, 3).to_sparse(1);
      parameter.mutable_grad() = gradient;
      plain.mutable_grad() = gradient;
      if (partition == ZeroPartition::kEvenSplit) {
        EXPECT_THAT(
            message_of_thrown<c10::ValueError>([&] { optimizer->step(); }),
            AllOf(HasSubstr("is sparse"), HasSubstr("kWholeParameters")));
      } else {
        torch::optim::SGD expected({plain}, sgd);
        optimizer->step();
        expected.step();
        EXPECT_TRUE(at::equal(parameter, plain));
      }
    }
  });
}

TEST(ZeroErrors, ParametersCannotBeTakenAway) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    const auto optimizer = make_zero<torch::optim::SGD>(
        std::vector<at::Tensor>{leaf({2}), leaf({3})},
        torch::optim::SGDOptions(0.1),
        dp);
    optimizer->param_groups()[0].params().pop_back();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { optimizer->step(); }),
        HasSubstr("group 0: got 1 parameters, expected at least 2"));
    const auto other = make_zero<torch::optim::SGD>(
        std::vector<at::Tensor>{leaf({2})}, torch::optim::SGDOptions(0.1), dp);
    other->add_param_group(torch::optim::OptimizerParamGroup({leaf({3})}));
    other->step();
    other->param_groups().pop_back();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { other->step(); }),
        HasSubstr("parameter groups: got 1, expected at least 2"));
  });
}

// A plain optimizer's way to its state would make all of it on each rank.
TEST(ZeroState, IsWhatDistributedDataParallelGivesOfTheOptimizer) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const torch::nn::Linear linear(4, 3);
    DistributedDataParallel<torch::nn::LinearImpl> model(linear, mesh);
    const auto optimizer = make_zero<torch::optim::Adam>(
        linear->parameters(), torch::optim::AdamOptions(0.1), mesh);
    model(at::ones({2, 4})).sum().backward();
    optimizer->step();
    const auto own = optimizer->state_dict(*linear);
    const auto state = model.optimizer_state_dict(*optimizer);
    ASSERT_EQ(state.size(), own.size());
    for (const auto& [key, value] : own) {
      EXPECT_TRUE(data_parallel::local_part(state.at(key))
                      .equal(data_parallel::local_part(value)))
          << key;
    }
    model.load_optimizer_state_dict(*optimizer, state);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { JoinableOptimizer(*optimizer, model); }),
        HasSubstr("is itself a joinable"));
  });
}

TEST(ZeroParts, TheLargestGoFirstToWhoHasLeast) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    PartPlanner planner(dp, ZeroPartition::kWholeParameters);
    const auto owners = [&](const std::vector<at::Tensor>& parameters) {
      std::vector<int64_t> result;
      for (const auto& part : planner.plan(parameters)) {
        result.push_back(part.kind == ZeroPart::Kind::kOwned ? part.owner : -1);
      }
      return result;
    };
    EXPECT_THAT(
        owners(
            {leaf({3}), leaf({9}), leaf({}), leaf({5}), leaf({0}), leaf({5})}),
        ElementsAre(0, 0, -1, 1, -1, 1));
    // The next group starts from there: 12 and 10 elements, twice as large.
    EXPECT_THAT(
        owners({leaf({1}), wave({4}, 0.1, at::kDouble)}), ElementsAre(0, 1));
    EXPECT_THAT(planner.owned_bytes(), ElementsAre(52, 72));
  });
}

TEST(ZeroParts, OfCutParametersLieBehindTheCutsOfTheOtherDims) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto reversed = self.mesh({2, 2}, {"tp", "dp"});
    auto partition = ZeroPartition::kEvenSplit;
    const auto placement_of = [&](const mesh::DeviceMesh& root,
                                  at::IntArrayRef sizes,
                                  const dtensor::Placement& on_tp) {
      PartPlanner planner(root["dp"], partition);
      const auto parameter = dtensor::distribute_tensor(
          leaf(sizes), root["tp"], {on_tp}, std::nullopt);
      const auto part = planner.plan({parameter}).front();
      return part.kind == ZeroPart::Kind::kReplicated
                 ? "everywhere"
                 : part.placement.to_string();
    };
    using dtensor::Shard;
    EXPECT_EQ(placement_of(mesh, {8, 6}, Shard(1)), "S(0)");
    EXPECT_EQ(placement_of(mesh, {8, 6}, Shard(0)), "_S(0, 2)");
    EXPECT_EQ(placement_of(reversed, {8, 6}, Shard(0)), "S(0)");
    EXPECT_EQ(placement_of(mesh, {8, 6}, Shard(0, {3, 5})), "_S(0, 2)");
    EXPECT_EQ(placement_of(reversed, {8}, Shard(0, {3, 5})), "S(0)");
    // An owner's rows would have given sizes too: its columns, or everywhere.
    partition = ZeroPartition::kWholeParameters;
    EXPECT_EQ(placement_of(mesh, {8, 6}, Shard(0, {3, 5})), "S(1, [6, 0])");
    EXPECT_EQ(placement_of(mesh, {8}, Shard(0, {3, 5})), "everywhere");
  });
}

} // namespace
} // namespace weft::ddp
