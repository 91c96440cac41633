// Small models trained on several ranks follow one rank, step by step.

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/nn/clip_grad.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "dtensor/tensor/parameter_info.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_line;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;
using Tensors = std::vector<at::Tensor>;

// B: batch, T: tokens, C: channels, H: heads, V: vocabulary.
constexpr int64_t kB = 2, kT = 6, kC = 12, kH = 4, kV = 11;

enum Parameter {
  kEmbedding,
  kNorm,
  kQuery,
  kKey,
  kValue,
  kOut,
  kNorm2,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kHead,
};

Tensors initial(at::ScalarType dtype) {
  const std::vector<std::vector<int64_t>> sizes{
      {kV, kC},
      {kC},
      {kC, kC},
      {kC, kC},
      {kC, kC},
      {kC, kC},
      {kC},
      {20, kC},
      {20},
      {kC, 20},
      {kC},
      {kV, kC}};
  Tensors parameters;
  for (const auto& each : sizes) {
    parameters.push_back(
        random(each, 10 + parameters.size()).mul(0.3).to(dtype));
  }
  return parameters;
}

at::Tensor heads(const at::Tensor& x_BTC) {
  return x_BTC.view({kB, kT, kH, kC / kH}).transpose(1, 2);
}

at::Tensor
loss_of(const Tensors& p, const at::Tensor& tokens, const at::Tensor& targets) {
  auto x = torch::embedding(p[kEmbedding], tokens);
  auto h = at::rms_norm(x, {kC}, p[kNorm], 1e-6);
  const auto q = heads(torch::linear(h, p[kQuery]));
  const auto k = heads(torch::linear(h, p[kKey]));
  const auto v = heads(torch::linear(h, p[kValue]));
  const auto a =
      at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
  x = x + torch::linear(a.transpose(1, 2).reshape({kB, kT, kC}), p[kOut]);
  h = at::rms_norm(x, {kC}, p[kNorm2], 1e-6);
  h = torch::silu(torch::linear(h, p[kUp], p[kUpBias]));
  x = x + torch::linear(h, p[kDown], p[kDownBias]);
  const auto logits = torch::linear(x, p[kHead]);
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.reshape({-1}));
}

enum class Optimizer { kAdamW, kAmsgrad, kFused, kSgd };

struct Setup {
  Optimizer optimizer = Optimizer::kAdamW;
  bool sequence_parallel = false;
  bool torch_clip = false;
  at::ScalarType dtype = at::kDouble;
  int steps = 4;
};

struct Trace {
  std::vector<double> losses;
  std::vector<double> norms;
  Tensors parameters;
};

// One line of tensor-parallel placements.
Tensors
placed(const Tensors& whole, const mesh::DeviceMesh& mesh, const Setup& setup) {
  std::map<int, Placement> cut;
  for (const int i : {kEmbedding, kQuery, kKey, kValue, kUp, kUpBias, kHead}) {
    cut[i] = Shard(0);
  }
  for (const int i : {kOut, kDown}) {
    cut[i] = Shard(1);
  }
  Tensors parameters;
  for (size_t i = 0; i < whole.size(); ++i) {
    parameters.push_back(distributed(
        whole[i].clone().requires_grad_(), mesh, {cut[static_cast<int>(i)]}));
  }
  const Placements between{setup.sequence_parallel ? Shard(1) : Replicate()};
  parameter_info(parameters[kEmbedding]).embedding.output = between;
  parameter_info(parameters[kOut]).linear.output = between;
  parameter_info(parameters[kDown]).linear.output = between;
  return parameters;
}

double clip(const Tensors& parameters, bool by_torch) {
  return by_torch ? torch::nn::utils::clip_grad_norm_(parameters, 0.5)
                  : clip_grad_norm_(parameters, 0.5);
}

class Stepper {
 public:
  Stepper(Tensors parameters, Optimizer kind)
      : parameters_(std::move(parameters)) {
    using namespace torch::optim;
    switch (kind) {
      case Optimizer::kAdamW:
      case Optimizer::kAmsgrad:
        optimizer_ = std::make_unique<AdamW>(
            parameters_,
            AdamWOptions(1e-2).amsgrad(kind == Optimizer::kAmsgrad));
        break;
      case Optimizer::kSgd:
        optimizer_ = std::make_unique<SGD>(
            parameters_, SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
        break;
      case Optimizer::kFused:
        for (const auto& parameter : parameters_) {
          first_.push_back(at::zeros_like(parameter));
          second_.push_back(at::zeros_like(parameter));
          steps_.push_back(at::zeros({}));
        }
    }
  }

  void step() {
    if (optimizer_) {
      optimizer_->step();
      return;
    }
    const at::NoGradGuard no_grad;
    Tensors grads;
    for (const auto& parameter : parameters_) {
      grads.push_back(parameter.grad());
    }
    for (const auto& step : steps_) {
      step.add_(1);
    }
    at::_fused_adamw_(
        parameters_,
        grads,
        first_,
        second_,
        {},
        steps_,
        /*lr=*/1e-2,
        /*beta1=*/0.9,
        /*beta2=*/0.999,
        /*weight_decay=*/1e-2,
        /*eps=*/1e-8,
        /*amsgrad=*/false,
        /*maximize=*/false);
  }

 private:
  Tensors parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Tensors first_, second_, steps_;
};

Trace train(
    const Tensors& parameters,
    const at::Tensor& tokens,
    const at::Tensor& targets,
    const Setup& setup) {
  Trace trace;
  Stepper stepper(parameters, setup.optimizer);
  for (int step = 0; step < setup.steps; ++step) {
    for (const auto& parameter : parameters) {
      parameter.mutable_grad().reset();
    }
    const auto loss = loss_of(parameters, tokens, targets);
    trace.losses.push_back(loss.item<double>());
    loss.backward();
    trace.norms.push_back(clip(parameters, setup.torch_clip));
    stepper.step();
  }
  for (const auto& parameter : parameters) {
    trace.parameters.push_back(
        (is_dtensor(parameter) ? full_tensor(parameter) : parameter).detach());
  }
  return trace;
}

void compare(const Setup& setup, double tolerance) {
  const auto whole = initial(setup.dtype);
  const auto tokens =
      random({kB, kT}, 3).mul(100).abs().to(at::kLong).remainder(kV);
  const auto targets = tokens.roll(1, 1);
  Tensors leaves;
  for (const auto& each : whole) {
    leaves.push_back(each.clone().requires_grad_());
  }
  const auto expected = train(leaves, tokens, targets, setup);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const int n : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(n) + " ranks");
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = self.mesh({self.world_size}, {"tp"});
      const auto replicated = [&](const at::Tensor& tensor) {
        return distributed(tensor, mesh, {Replicate()});
      };
      const auto trace = train(
          placed(whole, mesh, setup),
          replicated(tokens),
          replicated(targets),
          setup);
      for (int step = 0; step < setup.steps; ++step) {
        EXPECT_NEAR(trace.losses[step] / expected.losses[step], 1, tolerance)
            << "loss of step " << step;
        EXPECT_NEAR(trace.norms[step] / expected.norms[step], 1, tolerance)
            << "norm of step " << step;
      }
      for (size_t i = 0; i < whole.size(); ++i) {
        expect_close(
            trace.parameters[i],
            expected.parameters[i],
            tolerance,
            "parameter " + std::to_string(i));
      }
    });
  }
}

TEST(Training, AdamWFollowsOneRank) {
  compare({}, 1e-7);
}

TEST(Training, SequenceParallelFollowsOneRank) {
  compare({.sequence_parallel = true, .torch_clip = true}, 1e-7);
}

TEST(Training, FusedAdamWFollowsOneRank) {
  compare({.optimizer = Optimizer::kFused, .sequence_parallel = true}, 1e-7);
}

TEST(Training, AmsgradFollowsOneRank) {
  compare({.optimizer = Optimizer::kAmsgrad, .torch_clip = true}, 1e-7);
}

TEST(Training, SgdWithMomentumFollowsOneRank) {
  compare({.optimizer = Optimizer::kSgd, .sequence_parallel = true}, 1e-7);
}

TEST(Training, FloatAndBfloat16FollowOneRank) {
  compare({.sequence_parallel = true, .dtype = at::kFloat}, 2e-3);
  compare(
      {.optimizer = Optimizer::kSgd,
       .sequence_parallel = true,
       .dtype = at::kBFloat16,
       .steps = 2},
      0.1);
}

TEST(ClipGrad, CountsEveryElementOnce) {
  run_ranks(4, [](RankContext& self) {
    const auto line = self.mesh({4}, {"tp"});
    const auto grid = self.mesh({2, 2}, {"dp", "tp"});
    Tensors plain;
    Tensors parameters;
    const auto add = [&](const mesh::DeviceMesh& mesh, const Placements& p) {
      const auto value = random({5, 3}, plain.size());
      plain.push_back(value);
      parameters.push_back(distributed(
          at::zeros({5, 3}, at::kDouble).requires_grad_(), mesh, p));
      parameters.back().mutable_grad() = distributed(value, mesh, p);
    };
    add(line, {Shard(0)});
    add(line, {Replicate()});
    add(line, {Shard(1)});
    add(grid, {Shard(0), Shard(1)});
    add(grid, {Replicate(), Shard(0)});
    add(grid, {Shard(0), Shard(0)});
    add(grid, {Replicate(), Replicate()});
    const double expected = at::cat(plain).norm().item<double>();
    EXPECT_NEAR(grad_norm(parameters), expected, 1e-12 * expected);
    // What rides with it changes no bit, and comes back summed.
    for (const auto& mesh : {line, grid["dp"], grid["tp"]}) {
      const auto extra_sums =
          at::tensor({1.0, static_cast<double>(self.rank)}, at::kDouble);
      EXPECT_EQ(
          GradNorm(parameters).all_reduce(mesh, extra_sums),
          grad_norm(parameters));
      EXPECT_EQ(extra_sums[0].item<double>(), mesh.size());
      double ranks = 0;
      for (const int64_t rank : mesh.ranks()) {
        ranks += static_cast<double>(rank);
      }
      EXPECT_EQ(extra_sums[1].item<double>(), ranks);
    }
    EXPECT_NEAR(clip_grad_norm_(parameters, 1.0), expected, 1e-12 * expected);
    EXPECT_NEAR(grad_norm(parameters), 1.0, 1e-6);
    EXPECT_NEAR(clip_grad_norm_(parameters, 2.0), 1.0, 1e-6);
    EXPECT_NEAR(grad_norm(parameters), 1.0, 1e-6);
  });
}

TEST(ClipGrad, PlainParametersAndMissingGradients) {
  auto a = at::zeros({2}).requires_grad_();
  a.mutable_grad() = at::full({2}, 3.0);
  const auto b = at::zeros({2}).requires_grad_();
  EXPECT_NEAR(clip_grad_norm_({a, b}, 1.0), std::sqrt(18.0), 1e-6);
  EXPECT_EQ(grad_norm({b}), 0);
}

double norm_of_gradient(const at::Tensor& grad) {
  const auto parameter = at::zeros_like(grad).requires_grad_();
  parameter.mutable_grad() = grad;
  return grad_norm({parameter});
}

TEST(ClipGrad, SquaresThatTheDtypeCannotHoldAreAddedUpInAWiderOne) {
  EXPECT_NEAR(
      norm_of_gradient(at::full({16}, 30000.0, at::kHalf)), 120000, 0.5);
  EXPECT_NEAR(norm_of_gradient(at::full({16}, 1e-4, at::kHalf)), 4e-4, 1e-7);
  EXPECT_TRUE(
      std::isnan(norm_of_gradient(at::full({2}, std::nan(""), at::kHalf))));

  auto parameter = at::zeros({16}, at::kHalf).requires_grad_();
  parameter.mutable_grad() = at::full({16}, 30000.0, at::kHalf);
  EXPECT_NEAR(clip_grad_norm_({parameter}, 1.0), 120000, 0.5);
  EXPECT_NEAR(norm_of_gradient(parameter.grad()), 1.0, 1e-3);
}

TEST(ClipGrad, TheNormOfBfloat16DoesNotDependOnTheCut) {
  const auto whole = random({999, 7}, 5).to(at::kBFloat16);
  const double expected = whole.to(at::kDouble).norm().item<double>();
  EXPECT_NEAR(norm_of_gradient(whole) / expected, 1, 1e-6);
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& placement : {kR, Shard(0), Shard(1)}) {
        EXPECT_NEAR(
            norm_of_gradient(distributed(whole, mesh, {placement})) / expected,
            1,
            1e-6);
      }
      // Beside another dtype.
      const auto half = at::zeros({999, 7}, at::kBFloat16).requires_grad_();
      half.mutable_grad() = whole;
      const auto full = at::zeros({2}, at::kDouble).requires_grad_();
      full.mutable_grad() = at::full({2}, 3.0, at::kDouble);
      EXPECT_NEAR(
          grad_norm({half, full}) / std::hypot(expected, std::sqrt(18.0)),
          1,
          1e-6);
    });
  }
}

TEST(ClipGrad, APendingSumIsRefused) {
  const auto mesh = fake_line(0, 2);
  const auto parameter =
      distributed(at::zeros({2}).requires_grad_(), mesh, {Replicate()});
  parameter_info(parameter).fqn = "norm.weight";
  parameter.mutable_grad() = from_local(at::ones({2}), mesh, {Partial()});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] { grad_norm({parameter}); }),
      HasSubstr("\"norm.weight\""));
}

} // namespace
} // namespace weft::dtensor
