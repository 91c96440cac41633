// The plans beside the models: logits and gradients on several ranks are those
// of one.

#include <map>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/dtensor.h"
#include "models/plans.h"
#include "tests/models/formula.h"
#include "tests/support/run_ranks.h"

namespace weft::models {
namespace {

struct PlannedCase {
  std::string name;
  int64_t tp;
  bool sequence_parallel = true;
  bool loss_parallel = true;
};

at::Tensor plan_wave(at::IntArrayRef sizes, double phase) {
  return wave(c10::multiply_integers(sizes), phase, at::kFloat).view(sizes);
}

// The values that one rank would have, wherever they lie.
void fill_parameters(Model& model) {
  const at::NoGradGuard no_grad;
  const dtensor::ImplicitReplication whole;
  double phase = 0;
  for (auto& parameter : model.parameters()) {
    parameter.copy_(0.3 * plan_wave(parameter.sizes(), phase++));
  }
}

struct PlannedResult {
  at::Tensor logits;
  std::map<std::string, at::Tensor> gradients;
};

at::Tensor whole_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::full_tensor(tensor) : tensor;
}

PlannedResult run_once(Model& model, const at::Tensor& input) {
  const auto logits = model.forward(input);
  {
    // Every rank has the whole factor.
    const dtensor::ImplicitReplication whole;
    (logits * plan_wave(logits.sizes(), 0.5)).sum().backward();
  }
  PlannedResult result;
  result.logits = whole_of(logits.detach());
  for (const auto& item : model.named_parameters()) {
    result.gradients[item.key()] = whole_of(item.value().grad());
  }
  return result;
}

void expect_same_result(
    const PlannedResult& actual,
    const PlannedResult& expected) {
  const auto expect_close = [](const at::Tensor& a,
                               const at::Tensor& b,
                               const std::string& name) {
    ASSERT_EQ(a.sizes(), b.sizes()) << name;
    EXPECT_LE(
        (a - b).norm().item<double>(), 2e-5 * b.norm().item<double>() + 1e-5)
        << name;
  };
  expect_close(actual.logits, expected.logits, "logits");
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    expect_close(actual.gradients.at(name), gradient, name);
  }
}

template <class ModelImpl, class Config, class Plan>
void expect_plan_holds(
    const Config& config,
    Plan plan,
    const at::Tensor& input,
    const PlannedCase& planned) {
  ModelImpl single(config);
  fill_parameters(single);
  const auto expected = run_once(single, input);
  test::run_ranks(static_cast<int>(planned.tp), [&](test::RankContext& self) {
    const auto mesh = self.mesh({planned.tp}, {"tp"});
    std::shared_ptr<ModelImpl> model;
    {
      const dtensor::DeferredInit scope;
      model = std::make_shared<ModelImpl>(config);
    }
    tp::parallelize_module(
        *model,
        mesh,
        plan(
            PlanOptions{
                .sequence_parallel = planned.sequence_parallel,
                .loss_parallel = planned.loss_parallel,
                .size = planned.tp},
            config));
    dtensor::materialize(*model, /*seed=*/1);
    fill_parameters(*model);
    expect_same_result(run_once(*model, input), expected);
  });
}

class ModelPlans : public ::testing::TestWithParam<PlannedCase> {};

// Seven tokens, which two ranks and three share unevenly.
TEST_P(ModelPlans, Gpt2) {
  Gpt2Config config;
  config.dim = 24;
  config.heads = 6;
  config.ffn_dim = 20;
  config.vocab_size = 37;
  config.max_position_embeddings = 9;
  const auto tokens = (at::arange(21) * 31).remainder(37).view({3, 7});
  expect_plan_holds<Gpt2LMHeadModelImpl>(config, gpt2_plan, tokens, GetParam());
}

// Sixteen patches and the class token.
TEST_P(ModelPlans, Vit) {
  VitConfig config;
  config.dim = 24;
  config.heads = 6;
  config.ffn_dim = 20;
  const auto pixels = plan_wave({3, 1, 8, 8}, 0.1);
  expect_plan_holds<VitForImageClassificationImpl>(
      config, vit_plan, pixels, GetParam());
}

TEST_P(ModelPlans, Mlp) {
  for (const int64_t layers : {1, 2, 3}) {
    MlpConfig config;
    config.layers = layers;
    config.ffn_dim = 20;
    const auto pixels = plan_wave({3, 1, 8, 8}, 0.1);
    expect_plan_holds<MlpClassifierImpl>(config, mlp_plan, pixels, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    ModelPlans,
    ::testing::Values(
        PlannedCase{"Tp2", 2},
        PlannedCase{"Tp3", 3},
        PlannedCase{"Tp2WholeSequences", 2, false},
        PlannedCase{"Tp3WholeLogits", 3, true, false}),
    [](const auto& info) { return info.param.name; });

} // namespace
} // namespace weft::models
