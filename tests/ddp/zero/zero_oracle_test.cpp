// The sharded optimizer against PyTorch's; oracle/zero.py says on what.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "ddp/zero/zero_redundancy_optimizer.h"
#include "tests/ddp/zero/zero_cases.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::ParamGroups;
using test::RankContext;
using test::run_ranks;
using test::wave;

constexpr size_t kFirstGroup = 3;
constexpr int64_t kOracleSteps = 4;

struct OracleModel : torch::nn::Module {
  OracleModel() {
    const std::vector<std::vector<int64_t>> shapes{
        {8, 6}, {7, 5}, {5}, {1, 4}, {33, 9}, {4, 2}, {6, 4}};
    for (size_t i = 0; i < shapes.size(); ++i) {
      register_parameter(
          std::to_string(i), wave(shapes[i], static_cast<double>(i)));
    }
  }

  void set_gradients(int64_t step) {
    auto all = parameters();
    for (int64_t i = 0; i < static_cast<int64_t>(all.size()); ++i) {
      all[i].mutable_grad() =
          (i + step) % 5 == 1
              ? at::Tensor()
              : wave(all[i].sizes(), 0.31 * static_cast<double>(7 * step + i));
    }
  }
};

nlohmann::json stored_zero(int64_t world, const std::string& name) {
  std::ifstream file(WEFT_TEST_DDP_FOLDER "/oracle/zero.json");
  return nlohmann::json::parse(file)
      .at("outputs")
      .at(std::to_string(world))
      .at(name);
}

void expect_stored_parameters(
    const OracleModel& model,
    const nlohmann::json& stored) {
  const auto all = model.parameters();
  for (size_t i = 0; i < all.size(); ++i) {
    const auto expected = at::tensor(
        stored.at("parameters").at(i).get<std::vector<double>>(), at::kDouble);
    EXPECT_TRUE(
        at::allclose(all[i].detach().view({-1}), expected, 1e-11, 1e-12))
        << "parameter " << i;
  }
}

void expect_stored_state(
    const dtensor::StateDict& state,
    const nlohmann::json& stored) {
  size_t compared = 0;
  for (const auto& [index, entries] : stored.at("state_sums").items()) {
    for (const auto& [name, sum] : entries.items()) {
      const auto& tensor = state.at("state." + index + "." + name);
      EXPECT_NEAR(
          tensor.to(at::kDouble).sum().item<double>(), sum.get<double>(), 1e-10)
          << index << " " << name;
      ++compared;
    }
  }
  EXPECT_GE(compared, 7U);
}

class ZeroOracle : public ::testing::TestWithParam<int> {};

TEST_P(ZeroOracle, GivesWhatPyTorchsDoes) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto dp = self.mesh({self.world_size}, {"dp"});
    for (const auto& [name, make] : test::zero_cases()) {
      const auto stored = stored_zero(self.world_size, name);
      for (const auto& options : test::all_zero_options()) {
        SCOPED_TRACE(name + " " + test::zero_options_name(options));
        OracleModel model;
        const auto all = model.parameters();
        ParamGroups groups;
        groups.emplace_back(
            std::vector<at::Tensor>(all.begin(), all.begin() + kFirstGroup));
        ZeroRedundancyOptimizer optimizer(groups, make, dp, options);
        optimizer.add_param_group(
            std::vector<at::Tensor>(all.begin() + kFirstGroup, all.end()));
        optimizer.param_groups()[1].options().set_lr(0.05);
        for (int64_t step = 0; step < kOracleSteps; ++step) {
          optimizer.param_groups()[0].options().set_lr(0.02 / (1.0 + step));
          model.set_gradients(step);
          optimizer.step();
        }
        const auto state = optimizer.consolidate_state_dict(model);
        expect_stored_parameters(model, stored);
        if (self.rank == 0) {
          expect_stored_state(state, stored);
        }
        if (options.partition == ZeroPartition::kWholeParameters) {
          const auto parts = optimizer.parts();
          for (size_t i = 0; i < parts.size(); ++i) {
            EXPECT_EQ(
                parts[i].second.owner, stored.at("owners").at(i).get<int64_t>())
                << "parameter " << i;
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    ZeroOracle,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::ddp
