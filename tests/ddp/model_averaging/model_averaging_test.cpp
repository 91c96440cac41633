// Averages of parameters. Numbers of PyTorch's averagers are in
// oracle/comm_hooks.json.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/model_averaging/average_parameters.h"
#include "ddp/model_averaging/averagers.h"
#include "ddp/model_averaging/post_local_sgd_optimizer.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/ddp/models.h"
#include "tests/ddp/oracle/oracle.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::chirp;
using test::difference;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using test::stored_output;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A parameter with a gradient, all values `value`.
at::Tensor
parameter_of(double value, at::ScalarType dtype = at::kFloat, int64_t n = 4) {
  auto parameter = at::full({n}, value, dtype).requires_grad_();
  parameter.mutable_grad() = at::zeros({n}, dtype);
  return parameter;
}

double value_of(const at::Tensor& parameter) {
  EXPECT_TRUE(at::equal(parameter, parameter[0].expand_as(parameter)));
  return parameter[0].item<double>();
}

/// One parameter, as in comm_hooks.py.
struct OneParameter : torch::nn::Module {
  OneParameter()
      : weight(register_parameter("weight", chirp({3}, 0.1, at::kDouble))) {}
  at::Tensor weight;
};

/// Trains as comm_hooks.py does and compares each step.
void expect_steps(
    const RankContext& self,
    const std::shared_ptr<ModelAverager>& averager,
    const std::string& name) {
  const auto stored = stored_output(self.world_size, name, self.rank);
  OneParameter model;
  PostLocalSGDOptimizer optimizer(
      std::make_shared<torch::optim::SGD>(
          model.parameters(), torch::optim::SGDOptions(0.1)),
      averager);
  for (size_t step = 0; step < stored["steps"].size(); ++step) {
    optimizer.zero_grad();
    const double phase =
        static_cast<double>(step) + 0.7 * static_cast<double>(self.rank);
    (model.weight * chirp({3}, phase, at::kDouble)).sum().backward();
    optimizer.step();
    EXPECT_LE(difference(model.weight.detach(), stored["steps"][step]), 1e-14)
        << step;
  }
  EXPECT_EQ(averager->step(), 9);
}

class ModelAveraging : public ::testing::TestWithParam<int> {};

TEST_P(ModelAveraging, IsPeriodicAsPyTorchs) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    expect_steps(
        self,
        std::make_shared<PeriodicModelAverager>(3, 2, mesh),
        "PeriodicModelAverager");
    expect_steps(
        self,
        std::make_shared<PeriodicModelAverager>(3, 2, mesh.group("dp")),
        "PeriodicModelAverager");
  });
}

TEST_P(ModelAveraging, IsOfWhatHasAGradientOnAnyRankOneMessageADtype) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const double own = static_cast<double>(self.rank);
    const double mean = static_cast<double>(n - 1) / 2;
    const auto group = self.mesh({n}, {"dp"}).group("dp");
    std::vector<at::Tensor> parameters{
        parameter_of(own),
        parameter_of(own, at::kDouble, 3),
        parameter_of(own, at::kBFloat16),
        parameter_of(own),
        parameter_of(own),
        parameter_of(own, at::kDouble, 2)};
    parameters[3].mutable_grad() = at::Tensor();
    if (self.rank != 0) {
      parameters[4].mutable_grad() = at::Tensor();
    }
    group.flight_recorder().reset();
    average_parameters(parameters, group);
    EXPECT_EQ(value_of(parameters[0]), mean);
    EXPECT_EQ(value_of(parameters[1]), mean);
    EXPECT_EQ(value_of(parameters[2]), mean);
    EXPECT_EQ(value_of(parameters[3]), own);
    EXPECT_EQ(value_of(parameters[4]), mean);
    EXPECT_EQ(value_of(parameters[5]), mean);
    std::vector<int64_t> bytes;
    for (const auto& entry : group.flight_recorder().entries()) {
      EXPECT_EQ(entry.name, "average_parameters");
      bytes.push_back(entry.bytes);
    }
    EXPECT_THAT(bytes, ElementsAre(16, 24, 2 * 16, 5 * 8, 8));
  });
}

TEST_P(ModelAveraging, OfOtherNumbersOfParametersIsRefusedOnAllRanks) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto group = self.mesh({n}, {"dp"}).group("dp");
    std::vector<at::Tensor> parameters(
        self.rank == n - 1 ? 3 : 2, parameter_of(1));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { average_parameters(parameters, group); }),
        AllOf(
            HasSubstr("[average_parameters]"),
            HasSubstr(
                "got " + std::to_string(parameters.size()) +
                " on this rank, and 2 to 3 over all ranks"),
            HasSubstr("rank " + std::to_string(self.rank))));
    // The group can still be used.
    parameters.resize(2);
    average_parameters(parameters, group);
  });
}

TEST_P(ModelAveraging, OfLocalSgdResumesAtItsStep) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    const auto make = [&](OneParameter& model) {
      return PostLocalSGDOptimizer(
          std::make_shared<torch::optim::SGD>(
              model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
          std::make_shared<PeriodicModelAverager>(3, 1, mesh));
    };
    const auto train = [&](OneParameter& model,
                           PostLocalSGDOptimizer& optimizer,
                           int64_t step) {
      optimizer.zero_grad();
      const double phase = static_cast<double>(step + 10 * self.rank);
      (model.weight * chirp({3}, phase, at::kDouble)).sum().backward();
      optimizer.step();
    };
    OneParameter model;
    auto optimizer = make(model);
    for (int64_t step = 0; step < 2; ++step) {
      train(model, optimizer, step);
    }
    OneParameter resumed;
    auto fresh = make(resumed);
    {
      const at::NoGradGuard no_grad;
      resumed.weight.copy_(model.weight);
    }
    auto state = optimizer.state_dict(model, mesh);
    EXPECT_EQ(state.count("step"), 1);
    fresh.load_state_dict(resumed, state);
    EXPECT_EQ(fresh.averager().step(), 2);
    for (int64_t step = 2; step < 6; ++step) {
      train(model, optimizer, step);
      train(resumed, fresh, step);
      EXPECT_TRUE(at::equal(resumed.weight, model.weight)) << step;
    }
    // Without the averager's step it starts again, as in PyTorch.
    state.erase("step");
    fresh.load_state_dict(resumed, state);
    EXPECT_EQ(fresh.averager().step(), 0);
    for (const auto& bad : {at::ones({2}, at::kLong), at::ones({1})}) {
      state["step"] = bad;
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(
              [&] { fresh.load_state_dict(resumed, state); }),
          HasSubstr("\"step\" must be one int64 value"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    ModelAveraging,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

TEST(ModelAveragingOfFour, IsHierarchicalAsPyTorchs) {
  run_ranks(4, [](RankContext& self) {
    expect_steps(
        self,
        std::make_shared<HierarchicalModelAverager>(
            std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {6, 4}},
            1,
            self.mesh({4}, {"dp"})),
        "HierarchicalModelAverager");
  });
}

TEST(ModelAveragingOfFour, IsOfTheLocalPartsOfDTensors) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const auto local = at::full({2, 3}, self.rank + 1.0);
    auto parameter =
        dtensor::from_local(local, mesh["tp"], {dtensor::Shard(0)});
    parameter.requires_grad_();
    parameter.mutable_grad() = at::zeros_like(parameter);
    average_parameters({parameter}, mesh.group("dp"));
    // World ranks 0 and 2, 1 and 3.
    EXPECT_TRUE(at::equal(
        dtensor::to_local(parameter).detach(),
        at::full({2, 3}, self.rank % 2 + 2.0)));
  });
}

TEST(ModelAveragingOfFour, CutsSubgroupsBesideEachOther) {
  run_ranks(4, [](RankContext& self) {
    const auto line = self.mesh({4}, {"dp"});
    const auto pair = new_subgroups(line, 2);
    const auto first = self.rank / 2 * 2;
    EXPECT_THAT(pair.ranks(), ElementsAre(first, first + 1));
    // The same once more is another group.
    EXPECT_EQ(new_subgroups(line, 2).size(), 2);
    EXPECT_EQ(new_subgroups(line, 1).size(), 1);
    EXPECT_EQ(new_subgroups(line, 4).size(), 4);
    const auto grid = self.mesh({2, 2}, {"dp", "tp"});
    EXPECT_THAT(
        new_subgroups(grid["dp"], 2).ranks(),
        ElementsAre(self.rank % 2, self.rank % 2 + 2));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { new_subgroups(grid, 2); }),
        AllOf(
            HasSubstr("[new_subgroups]"),
            HasSubstr("got 2 mesh dims, expected 1")));
    for (const int64_t size : {3, 8}) {
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(
              [&] { new_subgroups(line, size); }),
          HasSubstr("group_size: got " + std::to_string(size)));
    }
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { new_subgroups(line, 0); }),
        HasSubstr("group_size: got 0, expected a divisor"));
  });
}

TEST(ModelAveragerErrors, NameWhatIsWrong) {
  run_ranks(4, [](RankContext& self) {
    const auto line = self.mesh({4}, {"dp"});
    const auto grid = self.mesh({2, 2}, {"dp", "tp"});
    const auto periodic = [&](int64_t period, int64_t warmup_steps) {
      return message_of_thrown<c10::ValueError>(
          [&] { PeriodicModelAverager averager(period, warmup_steps, line); });
    };
    EXPECT_THAT(
        periodic(0, 0), HasSubstr("period: got 0, expected at least 1"));
    EXPECT_THAT(
        periodic(2, -1),
        HasSubstr("warmup_steps: got -1, expected at least 0"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { PeriodicModelAverager averager(2, 0, grid); }),
        HasSubstr("Pass a slice"));

    using PeriodGroupSize = std::vector<std::pair<int64_t, int64_t>>;
    const auto hierarchical = [&](const PeriodGroupSize& period_group_size,
                                  int64_t warmup_steps = 0) {
      return message_of_thrown<c10::ValueError>([&] {
        HierarchicalModelAverager averager(
            period_group_size, warmup_steps, line);
      });
    };
    EXPECT_THAT(hierarchical({}), HasSubstr("period_group_size is empty"));
    EXPECT_THAT(hierarchical({{0, 4}}), HasSubstr("got period 0"));
    EXPECT_THAT(
        hierarchical({{4, 2}, {4, 4}}), HasSubstr("got period 4 after 4"));
    EXPECT_THAT(
        hierarchical({{4, 2}, {2, 4}}), HasSubstr("got period 2 after 4"));
    EXPECT_THAT(
        hierarchical({{2, 4}, {4, 2}}),
        HasSubstr("got a group of 2 after one of 4"));
    EXPECT_THAT(
        hierarchical({{2, 0}, {4, 4}}),
        HasSubstr("got a group of 0 after one of 0"));
    EXPECT_THAT(
        hierarchical({{2, 3}, {4, 4}}),
        AllOf(HasSubstr("groups of 3"), HasSubstr("4 replicas")));
    EXPECT_THAT(
        hierarchical({{2, 2}}),
        HasSubstr("got a last group of 2, expected all 4"));
    EXPECT_THAT(
        hierarchical({{2, 4}}, -1),
        HasSubstr("warmup_steps: got -1, expected at least 0"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          HierarchicalModelAverager averager({{2, 4}}, 0, grid);
        }),
        HasSubstr("Pass a slice"));

    const auto averager = std::make_shared<PeriodicModelAverager>(2, 0, line);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { averager->set_step(-1); }),
        HasSubstr("step: got -1, expected at least 0"));
    const auto optim = std::make_shared<torch::optim::SGD>(
        std::vector<at::Tensor>{parameter_of(1)}, torch::optim::SGDOptions(1));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { PostLocalSGDOptimizer optimizer(nullptr, averager); }),
        HasSubstr("optim is null"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { PostLocalSGDOptimizer optimizer(optim, nullptr); }),
        HasSubstr("averager is null"));
  });
}

TEST(ModelAveragingOfOne, CommunicatesNothing) {
  run_ranks(1, [](RankContext& self) {
    const auto mesh = self.mesh({1}, {"dp"});
    // Every step, with a warning.
    PeriodicModelAverager averager(1, 0, mesh);
    HierarchicalModelAverager hierarchical({{1, 1}}, 0, mesh);
    const auto parameter = parameter_of(3);
    averager.average_parameters({parameter});
    hierarchical.average_parameters({parameter});
    EXPECT_EQ(value_of(parameter), 3);
    EXPECT_EQ(averager.step(), 1);
    EXPECT_EQ(hierarchical.step(), 1);
  });
}

} // namespace
} // namespace weft::ddp
