#include "train/setup/ema_weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "tests/support/run_ranks.h"

namespace weft::train {
namespace {

// One tensor under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : embedding(register_parameter("embedding", torch::rand({4, 3}))),
        head(register_parameter("head", embedding)) {}
  at::Tensor embedding, head;
};

// Moves every parameter, by another amount each time.
void change(torch::nn::Module& module, int step) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    parameter.mul_(0.5).add_(0.25 * (step + 1));
  }
}

TEST(EmaWeights, IsTheSumThatItsFormulaSays) {
  torch::manual_seed(1);
  torch::nn::Linear linear(3, 2);
  EmaWeights average(*linear, 0.75);
  EXPECT_FALSE(average.has_begun());
  const auto before = linear->weight.detach().clone();
  average.begin();
  at::Tensor expected = before;
  for (int step = 0; step < 4; ++step) {
    change(*linear, step);
    average.update();
    expected = 0.75 * expected + 0.25 * linear->weight.detach();
  }
  average.begin(); // changes nothing: it has begun
  average.swap();
  EXPECT_TRUE(at::allclose(linear->weight, expected, 1e-6, 1e-6));
  EXPECT_FALSE(at::allclose(linear->weight, before, 1e-2, 1e-2));
}

TEST(EmaWeights, ComesBackToTheBitWhenItIsSwappedTwice) {
  torch::manual_seed(2);
  torch::nn::Linear linear(3, 2);
  EmaWeights average(*linear, 0.9);
  average.begin();
  change(*linear, 0);
  average.update();
  const auto weights = linear->weight.detach().clone();
  average.swap();
  const auto averaged = linear->weight.detach().clone();
  EXPECT_FALSE(at::equal(averaged, weights));
  average.swap();
  EXPECT_TRUE(at::equal(linear->weight, weights));
  average.swap();
  EXPECT_TRUE(at::equal(linear->weight, averaged));
}

TEST(EmaWeights, LeavesFrozenParametersOut) {
  torch::nn::Linear linear(3, 2);
  linear->bias.requires_grad_(false);
  EmaWeights average(*linear, 0.9);
  average.begin();
  const auto bias = linear->bias.detach().clone();
  change(*linear, 0);
  const auto changed = linear->bias.detach().clone();
  average.update();
  average.swap();
  EXPECT_TRUE(at::equal(linear->bias, changed));
  EXPECT_FALSE(at::equal(bias, changed));
}

TEST(EmaWeights, AveragesATiedParameterOnce) {
  test::run_ranks(1, [&](test::RankContext& self) {
    TiedImpl tied;
    EmaWeights average(tied, 0.5);
    average.begin();
    const auto before = tied.embedding.detach().clone();
    {
      const at::NoGradGuard no_grad;
      tied.embedding.add_(1);
    }
    average.update();
    const auto state = average.state_dict(self.mesh({1}, {"dp"}));
    ASSERT_EQ(state.size(), 2);
    for (const auto* name : {"embedding", "head"}) {
      EXPECT_TRUE(at::allclose(
          dtensor::full_tensor(state.at(name)), before + 0.5, 1e-6, 1e-6))
          << name;
    }
  });
}

} // namespace
} // namespace weft::train
