// What an update makes of an element does not depend on how its parameter is
// cut: libtorch's kernels compute what lies beyond the last whole vector of a
// tensor by other instructions.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/tensor/dtensor.h"
#include "tests/support/run_ranks.h"
#include "train/setup/adamw.h"
#include "train/setup/ema_weights.h"

namespace weft::train {
namespace {

using test::RankContext;
using test::run_ranks;

constexpr int64_t kSize = 100;

at::Tensor numbers(int64_t seed, at::ScalarType dtype) {
  return at::arange(kSize, at::kDouble)
      .mul(0.37)
      .add(static_cast<double>(seed))
      .sin()
      .to(dtype);
}

// Three steps of a parameter that `part` takes out of the whole one.
at::Tensor stepped(
    const std::function<at::Tensor(const at::Tensor&)>& part,
    at::ScalarType dtype) {
  auto parameter = part(numbers(1, dtype)).clone().requires_grad_();
  FusedAdamW optimizer(
      {parameter}, torch::optim::AdamWOptions(0.03).weight_decay(0.1));
  for (int64_t step = 0; step < 3; ++step) {
    parameter.mutable_grad() = part(numbers(2 + step, dtype)).clone();
    optimizer.step();
  }
  return parameter.detach();
}

TEST(FusedAdamWBits, AreThoseOfTheWholeForAnyPartOfIt) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto whole = stepped([](const at::Tensor& x) { return x; }, dtype);
    int64_t different = 0;
    for (int64_t length = 1; length < kSize; ++length) {
      for (const int64_t begin : {int64_t{0}, kSize - length}) {
        const auto part = stepped(
            [&](const at::Tensor& x) { return x.narrow(0, begin, length); },
            dtype);
        different +=
            part.ne(whole.narrow(0, begin, length)).sum().item<int64_t>();
      }
    }
    EXPECT_EQ(different, 0) << dtype;
  }
}

TEST(FusedAdamWBits, OfRowsThatAreNotTheLastInMemoryAreTheSameToo) {
  const auto whole = stepped([](const at::Tensor& x) { return x; }, at::kFloat);
  const auto turned = stepped(
      [](const at::Tensor& x) {
        return x.narrow(0, 0, 99).view({9, 11}).t();
      },
      at::kFloat);
  EXPECT_TRUE(at::equal(turned.t().reshape({-1}), whole.narrow(0, 0, 99)));
}

TEST(FusedAdamWBits, OfShardsAreThoseOfOneRank) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto whole = stepped([](const at::Tensor& x) { return x; }, dtype);
    for (const int ranks : {2, 3, 4}) {
      run_ranks(ranks, [&](RankContext& self) {
        const auto mesh = self.mesh({ranks}, {"tp"});
        const auto shards = stepped(
            [&](const at::Tensor& x) {
              return dtensor::distribute_tensor(x, mesh, {dtensor::Shard(0)});
            },
            dtype);
        EXPECT_TRUE(at::equal(dtensor::full_tensor(shards), whole)) << dtype;
      });
    }
  }
}

struct One : torch::nn::Module {
  explicit One(const at::Tensor& value) {
    register_parameter("value", value.clone());
  }
};

at::Tensor averaged(int64_t begin, int64_t length, double decay) {
  const auto part = [&](int64_t seed) {
    return numbers(seed, at::kFloat).narrow(0, begin, length);
  };
  One module(part(1));
  EmaWeights average(module, decay);
  average.begin();
  const at::NoGradGuard no_grad;
  for (int64_t step = 0; step < 3; ++step) {
    module.parameters()[0].copy_(part(2 + step));
    average.update();
  }
  average.swap();
  return module.parameters()[0].detach().clone();
}

TEST(EmaWeightsBits, AreThoseOfTheWholeForAnyPartOfIt) {
  for (const double decay : {0.3, 0.9, 0.999}) {
    const auto whole = averaged(0, kSize, decay);
    int64_t different = 0;
    for (int64_t length = 1; length < kSize; ++length) {
      for (const int64_t begin : {int64_t{0}, kSize - length}) {
        different += averaged(begin, length, decay)
                         .ne(whole.narrow(0, begin, length))
                         .sum()
                         .item<int64_t>();
      }
    }
    EXPECT_EQ(different, 0) << decay;
  }
}

} // namespace
} // namespace weft::train
