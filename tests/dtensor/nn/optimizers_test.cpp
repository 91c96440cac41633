// Unmodified libtorch optimizers on cut parameters follow one rank: losses and
// all parameters, to 1e-9 in float64.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dtensor/nn/train_module.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor {
namespace {

using dtensor::test::Built;
using dtensor::test::expect_equal_traces;
using dtensor::test::MakeOptimizer;
using dtensor::test::ModuleCase;
using dtensor::test::random;
using dtensor::test::train_module;
using Tensors = std::vector<at::Tensor>;

struct OptimizerCase {
  std::string name;
  MakeOptimizer make;
};

void PrintTo(const OptimizerCase& each, std::ostream* stream) {
  *stream << each.name;
}

template <class Optimizer, class Options>
OptimizerCase optimizer(std::string name, const Options& options) {
  return {std::move(name), [options](const Tensors& parameters) {
            return std::make_unique<Optimizer>(parameters, options);
          }};
}

std::vector<OptimizerCase> cases() {
  using namespace torch::optim; // NOLINT: this test is about them
  return {
      optimizer<SGD>("SGD", SGDOptions(0.05)),
      optimizer<SGD>(
          "SGDWithMomentum",
          SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01)),
      optimizer<Adam>("Adam", AdamOptions(0.01).weight_decay(0.01)),
      optimizer<Adam>("Amsgrad", AdamOptions(0.01).amsgrad(true)),
      optimizer<AdamW>("AdamW", AdamWOptions(0.01)),
      optimizer<RMSprop>(
          "RMSprop", RMSpropOptions(0.01).momentum(0.5).centered(true)),
      optimizer<Adagrad>(
          "Adagrad",
          AdagradOptions(0.05).lr_decay(0.1).initial_accumulator_value(0.1)),
      optimizer<LBFGS>("LBFGS", LBFGSOptions(0.5).max_iter(4)),
      optimizer<LBFGS>(
          "LBFGSWithLineSearch",
          LBFGSOptions(1).max_iter(3).history_size(2).line_search_fn(
              "strong_wolfe")),
  };
}

// Five rows: uneven over 2 and 3 ranks.
Built model() {
  using namespace torch::nn; // NOLINT
  auto first = Linear(6, 5);
  auto norm = LayerNorm(LayerNormOptions({5}));
  auto second = Linear(5, 3);
  Sequential all(first, norm, Functional(torch::tanh), second);
  return {all.ptr(), [all](const Tensors& x) mutable {
            return all->forward(x[0]);
          }};
}

class Optimizers : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(Optimizers, FollowOneRankOnEveryMesh) {
  const ModuleCase each{"model", model, {random({4, 6}, 1)}};
  expect_equal_traces([&](const mesh::DeviceMesh& mesh, int64_t cut_dim) {
    return train_module(each, mesh, cut_dim, GetParam().make);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Optimizers,
    ::testing::ValuesIn(cases()),
    [](const auto& info) { return info.param.name; });

} // namespace
} // namespace weft::dtensor
