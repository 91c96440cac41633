#include "ddp/reducer/unused_parameters.h"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "tests/ddp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<at::Tensor> leaves(int count) {
  std::vector<at::Tensor> result;
  for (int i = 0; i < count; ++i) {
    result.push_back(wave({2, 2}, i).requires_grad_());
  }
  return result;
}

TEST(FindUnused, NamesWhatNoOutputDependsOn) {
  const auto p = leaves(4);
  EXPECT_THAT(find_unused({p[0] * p[2]}, p), ElementsAre(1, 3));
  EXPECT_THAT(find_unused({p[0] * p[2], p[1] + 1}, p), ElementsAre(3));
  EXPECT_THAT(find_unused({(p[0] * p[1] + p[2]).mm(p[3])}, p), IsEmpty());
}

TEST(FindUnused, TakesOutputsWithoutAGraph) {
  const auto p = leaves(2);
  const at::Tensor undefined;
  EXPECT_THAT(find_unused({}, p), ElementsAre(0, 1));
  EXPECT_THAT(
      find_unused({undefined, at::ones({2}), (p[0] * 2).detach()}, p),
      ElementsAre(0, 1));
  const at::NoGradGuard no_grad;
  EXPECT_THAT(find_unused({p[0] * p[1]}, p), ElementsAre(0, 1));
}

TEST(FindUnused, TakesOutputsThatAreParameters) {
  const auto p = leaves(3);
  EXPECT_THAT(find_unused({p[1]}, p), ElementsAre(0, 2));
  EXPECT_THAT(find_unused({p[1], p[1] * p[2]}, p), ElementsAre(0));
}

TEST(FindUnused, LooksThroughViewsAndChangesInPlace) {
  const auto p = leaves(3);
  auto x = p[0].view({4}).clone();
  x.add_(p[1].flatten());
  EXPECT_THAT(find_unused({x}, p), ElementsAre(2));
}

TEST(FindUnused, SeesEachGraphAnew) {
  const auto p = leaves(2);
  const UnusedParameters search(p);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(search.find({p[0] * 2}), ElementsAre(1));
    EXPECT_THAT(search.find({p[1] * 2}), ElementsAre(0));
    (p[0] * p[1]).sum().backward();
    EXPECT_THAT(search.find({p[0] * p[1]}), IsEmpty());
  }
}

TEST(FindUnused, DoesNotRecurseInDeepGraphs) {
  const auto p = leaves(2);
  auto x = p[0];
  for (int i = 0; i < 200'000; ++i) {
    x = x + 1;
  }
  EXPECT_THAT(find_unused({x}, p), ElementsAre(1));
}

TEST(FindUnused, VisitsSharedNodesOnce) {
  const auto p = leaves(2);
  auto x = p[0];
  for (int i = 0; i < 200; ++i) { // 2^200 paths
    x = x + x;
  }
  EXPECT_THAT(find_unused({x}, p), ElementsAre(1));
}

TEST(FindUnused, TakesDTensors) {
  run_ranks(2, [](RankContext& self) {
    const auto tp = self.mesh({2}, {"tp"});
    std::vector<at::Tensor> p;
    for (int i = 0; i < 3; ++i) {
      p.push_back(dtensor::distribute_tensor(
                      wave({4, 4}, i), tp, {dtensor::Shard(i % 2)})
                      .requires_grad_());
    }
    const auto y = at::mm(p[0], p[2]);
    EXPECT_THAT(find_unused({y}, p), ElementsAre(1));
    EXPECT_THAT(find_unused({dtensor::full_tensor(y)}, p), ElementsAre(1));
    EXPECT_THAT(find_unused({p[1]}, p), ElementsAre(0, 2));
  });
}

TEST(FindUnused, TakesFarLessThanAStep) {
  torch::nn::Sequential model;
  for (int i = 0; i < 100; ++i) {
    model->push_back(torch::nn::Linear(2, 2));
  }
  const UnusedParameters search(model->parameters());
  const auto output = model->forward(at::ones({1, 2}));
  auto least = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(search.find({output}), IsEmpty());
    least = std::min(least, std::chrono::steady_clock::now() - begin);
  }
  const auto us = std::chrono::duration<double, std::micro>(least).count();
  RecordProperty("microseconds", std::to_string(us));
  EXPECT_LT(us, 1000) << "200 parameters";
}

struct Head : torch::nn::Module {
  explicit Head(const at::Tensor& weight) {
    register_parameter("weight", weight);
    register_parameter("bias", at::ones({5}));
  }
};

struct TiedHead : torch::nn::Module {
  TiedHead() {
    register_parameter("scale", at::ones({3}));
    const auto embedding =
        register_module("embedding", torch::nn::Embedding(5, 3));
    register_module("gate", torch::nn::Linear(3, 2));
    register_module("head", std::make_shared<Head>(embedding->weight));
  }
};

TEST(DescribeUnused, SaysNothingIfAllGotAGradient) {
  const Mlp model;
  EXPECT_EQ(
      describe_unused(model, data_parallel::parameters_of(model), {}), "");
}

TEST(DescribeUnused, GroupsByModuleAndSaysWhyAndSinceWhen) {
  const Mlp model;
  EXPECT_EQ(
      describe_unused(
          model,
          data_parallel::parameters_of(model),
          {.iteration = 7,
           .without_gradient = {1, 2, 3},
           .not_in_graph = std::vector<size_t>{2, 3},
           .last_gradient = {7, 7, 5, std::nullopt, 7, 7}}),
      "3 of 6 parameters got no gradient in iteration 7\n  a (Linear)\n    "
      "bias [8]: an output depends on it, but the loss does not; last "
      "gradient: iteration 7\n  b (Linear)\n    weight [8, 8]: no output "
      "depends on it; last gradient: iteration 5\n    bias [8]: no output "
      "depends on it; last gradient: never\n");
}

TEST(DescribeUnused, NamesAllModulesOfATiedParameterAndTheModelItself) {
  const TiedHead model;
  const auto parameters = data_parallel::parameters_of(model);
  ASSERT_EQ(parameters.size(), 5U);
  std::vector<size_t> all{0, 1, 2, 3, 4};
  EXPECT_EQ(
      describe_unused(
          model, parameters, {.iteration = 1, .without_gradient = all}),
      "5 of 5 parameters got no gradient in iteration 1\n"
      "  the model (TiedHead)\n"
      "    scale [3]: last gradient: never\n"
      "  embedding (Embedding), head (Head): tied\n"
      "    weight [5, 3]: last gradient: never\n"
      "  gate (Linear)\n"
      "    weight [2, 3]: last gradient: never\n"
      "    bias [2]: last gradient: never\n"
      "  head (Head)\n"
      "    bias [5]: last gradient: never\n");
}

TEST(DescribeUnused, KnowsParametersThatNoModuleHasAnyMore) {
  const Mlp model;
  EXPECT_EQ(
      describe_unused(
          model,
          {{"gone", at::ones({2})}},
          {.iteration = 2, .without_gradient = {0}, .last_gradient = {1}}),
      "1 of 1 parameters got no gradient in iteration 2\n"
      "  no module\n"
      "    gone [2]: last gradient: iteration 1\n");
}

} // namespace
} // namespace weft::ddp
