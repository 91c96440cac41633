// Products cut into parts whose rows travel meanwhile: the numbers and the
// messages, and when it is done.

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtensor/kernels/async_tp.h"
#include "dtensor/scopes/scopes.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/models.h"
#include "tp/lora.h"

namespace weft::tp {
namespace {

using dtensor::AsyncTp;
using dtensor::AsyncTpCosts;
using dtensor::CommMatmul;
using dtensor::StepKind;
using ::testing::Contains;
using ::testing::Gt;
using ::testing::Pair;

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t dim, int64_t inside) {
    using torch::nn::LinearOptions;
    gate = register_module("gate", torch::nn::Linear(dim, inside));
    up = register_module(
        "up", torch::nn::Linear(LinearOptions(dim, inside).bias(false)));
    down = register_module("down", torch::nn::Linear(inside, dim));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto gated = gate(x).sigmoid();
    return down(gated * up(x));
  }
  torch::nn::Linear gate{nullptr};
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};

/// What a training step of a block makes.
struct Step {
  at::Tensor output;
  at::Tensor input_grad;
  std::vector<at::Tensor> grads;
  std::map<std::string, int64_t> messages;
};

struct StepCase {
  std::vector<int64_t> sizes;
  /// Which dim of x the ranks cut.
  int64_t cut = 1;
  int64_t inside = 7;
  at::ScalarType dtype = at::kDouble;
  bool has_adapters = false;
  bool is_frozen = false;
};

std::shared_ptr<BlockImpl> make_block(
    const mesh::DeviceMesh& mesh,
    const StepCase& of) {
  std::shared_ptr<BlockImpl> block;
  {
    const dtensor::DeferredInit scope;
    block = std::make_shared<BlockImpl>(of.sizes.back(), of.inside);
  }
  const auto stream = Shard(of.cut);
  const auto columns = ColwiseParallel({.input_layouts = stream});
  parallelize_module(
      *block,
      mesh["tp"],
      {{"gate", columns},
       {"up", columns},
       {"down", RowwiseParallel({.output_layouts = stream})}});
  if (of.has_adapters) {
    add_lora(*block, {"up", "down"}, {.rank = 3, .alpha = 6});
  }
  dtensor::materialize(*block, /*seed=*/5);
  block->to(of.dtype);
  for (auto& item : block->named_parameters()) {
    if (item.key().find("lora_B") != std::string::npos) {
      const at::NoGradGuard no_grad;
      item.value().fill_(0.25);
    }
    if (of.is_frozen && item.key().ends_with("weight")) {
      item.value().requires_grad_(false);
    }
  }
  return block;
}

Step run_step(
    const mesh::DeviceMesh& mesh,
    const StepCase& of,
    AsyncTp mode,
    bool needs_input_grad = true) {
  dtensor::set_async_tp(mesh, mode);
  const auto tp = mesh["tp"];
  const auto block = make_block(mesh, of);
  const auto x = local_leaf(wave(of.sizes).to(of.dtype), tp, Shard(of.cut));
  x.requires_grad_(needs_input_grad);
  auto& flight_recorder = tp.group(0).flight_recorder();
  flight_recorder.reset();
  Step step;
  const dtensor::ExplicitRedistribution none_implicit;
  step.output = block->forward(dtensor::from_local(x, tp, {Shard(of.cut)}, [&] {
    dtensor::FromLocalOptions options;
    options.sizes = of.sizes;
    return options;
  }()));
  const auto local = dtensor::to_local(step.output);
  (local * local * wave(local.sizes(), 0.7).to(of.dtype)).sum().backward();
  for (const auto& entry : flight_recorder.entries()) {
    ++step.messages[entry.op.substr(0, entry.op.rfind("_uneven"))];
  }
  step.input_grad = x.grad();
  for (const auto& parameter : block->parameters()) {
    step.grads.push_back(
        parameter.grad().defined() ? dtensor::full_tensor(parameter.grad())
                                   : at::Tensor());
  }
  step.output = dtensor::full_tensor(step.output.detach());
  return step;
}

void expect_near(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double tolerance,
    const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!expected.defined()) {
    return;
  }
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (tolerance == 0) {
    EXPECT_TRUE(at::equal(actual, expected)) << what;
  } else if (expected.numel() > 0) {
    EXPECT_LE(
        (actual - expected).abs().max().item<double>(),
        tolerance * expected.abs().max().item<double>())
        << what;
  }
}

void expect_same(const Step& actual, const Step& expected, double tolerance) {
  expect_near(actual.output, expected.output, tolerance, "output");
  expect_near(actual.input_grad, expected.input_grad, tolerance, "input");
  ASSERT_EQ(actual.grads.size(), expected.grads.size());
  for (size_t i = 0; i < actual.grads.size(); ++i) {
    expect_near(
        actual.grads[i],
        expected.grads[i],
        tolerance,
        c10::str("gradient ", i));
  }
}

// Number of ranks.
class AsyncTpSteps : public ::testing::TestWithParam<int> {
 protected:
  static void check(const StepCase& of, double tolerance) {
    test::run_ranks(GetParam(), [&](test::RankContext& self) {
      SCOPED_TRACE(c10::str(of.sizes, " cut ", of.cut));
      const auto mesh = self.mesh({GetParam()}, {"tp"});
      const auto off = run_step(mesh, of, AsyncTp::kOff);
      const auto on = run_step(mesh, of, AsyncTp::kOn);
      expect_same(on, off, tolerance);
      expect_same(run_step(mesh, of, AsyncTp::kAuto), off, 0);
    });
  }
};

// Rows in blocks as a BLAS takes them.
TEST_P(AsyncTpSteps, AreTheSameBits) {
  check({{2, 192, 64}, 1, 96, at::kFloat}, 0);
  check({{192, 2, 64}, 0, 96, at::kFloat}, 0);
  check({{192, 64}, 0, 96, at::kFloat}, 0);
}

TEST_P(AsyncTpSteps, OfUnevenAndEmptyParts) {
  for (const int64_t length : {7, 5, 2, 1}) {
    check({{3, length, 6}, 1}, 1e-14);
    check({{length, 3, 6}, 0}, 1e-14);
    check({{length, 6}, 0}, 1e-14);
  }
  // Some rank has no feature.
  check({{2, 5, 6}, 1, 2}, 1e-14);
}

TEST_P(AsyncTpSteps, OfHalves) {
  check({{2, 9, 16}, 1, 8, at::kBFloat16}, 1e-2);
}

TEST_P(AsyncTpSteps, WithAdaptersAndFrozenWeights) {
  check({{3, 7, 6}, 1, 7, at::kDouble, true}, 1e-14);
  check({{3, 7, 6}, 1, 7, at::kDouble, false, true}, 1e-14);
}

TEST_P(AsyncTpSteps, WithoutAGradientOfTheInput) {
  test::run_ranks(GetParam(), [&](test::RankContext& self) {
    const auto mesh = self.mesh({GetParam()}, {"tp"});
    const StepCase of{{3, 7, 6}};
    const auto off = run_step(mesh, of, AsyncTp::kOff, false);
    expect_same(run_step(mesh, of, AsyncTp::kOn, false), off, 1e-14);
  });
}

// gate gathers and multiplies, up takes what came; down sends its sums in
// parts; backward its gradients come in parts.
TEST_P(AsyncTpSteps, SendInParts) {
  test::run_ranks(GetParam(), [&](test::RankContext& self) {
    const auto mesh = self.mesh({GetParam()}, {"tp"});
    const StepCase of{{2, 192, 64}, 1, 96, at::kFloat};
    using Counts = std::map<std::string, int64_t>;
    const Counts whole{
        {"all_gather", 2}, {"reduce_scatter", 2}, {"all_reduce_coalesced", 1}};
    EXPECT_EQ(run_step(mesh, of, AsyncTp::kOff).messages, whole);
    EXPECT_EQ(run_step(mesh, of, AsyncTp::kAuto).messages, whole);
    const auto on = run_step(mesh, of, AsyncTp::kOn).messages;
    EXPECT_THAT(on, Contains(Pair("reduce_scatter", Gt(2))));
    // With a link that nobody waits for, more parts hide more.
    dtensor::set_async_tp(mesh, AsyncTp::kAuto, {.tflops = 1e-3, .overlap = 1});
    EXPECT_GT(
        dtensor::choose_num_chunks(
            mesh,
            {.kind = StepKind::kReduceScatter,
             .ranks = GetParam(),
             .bytes = 1e6,
             .flops = 1e6,
             .link = {.latency_us = 1, .bandwidth_gb_s = 1}},
            8),
        1);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    AsyncTpSteps,
    ::testing::Values(2, 3, 4),
    ::testing::PrintToStringParamName());

// Second derivatives go through the same moves in one message.
TEST(AsyncTpGraph, IsDifferentiableTwice) {
  test::run_ranks(2, [](test::RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const StepCase of{{3, 7, 6}};
    const auto penalty = [&](AsyncTp mode) {
      dtensor::set_async_tp(mesh, mode);
      const auto block = make_block(mesh, of);
      const auto x = dtensor::distribute_tensor(
          wave(of.sizes), mesh, {Shard(1)}, std::nullopt);
      x.requires_grad_();
      const auto y = block->forward(x);
      const auto grad = torch::autograd::grad(
          {y.pow(2).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
      grad.pow(2).sum().backward();
      return dtensor::full_tensor(block->down->weight.grad());
    };
    expect_near(penalty(AsyncTp::kOn), penalty(AsyncTp::kOff), 1e-13, "down");
  });
}

TEST(AsyncTpGraph, WorksBesideReplicas) {
  test::run_ranks(4, [](test::RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    const StepCase of{{3, 7, 6}};
    const auto off = run_step(mesh, of, AsyncTp::kOff);
    expect_same(run_step(mesh, of, AsyncTp::kOn), off, 1e-14);
  });
}

constexpr mesh::LinkCost kLink{.latency_us = 4, .bandwidth_gb_s = 350};

CommMatmul product_of(StepKind kind, double rows) {
  constexpr double kWidth = 8192;
  return {
      .kind = kind,
      .ranks = 8,
      .bytes = 2 * rows * kWidth,
      .flops = 2 * rows * kWidth * kWidth / 8,
      .link = kLink};
}

TEST(AsyncTpCosts, CutWhatHidesMoreThanItCosts) {
  test::run_ranks(1, [](test::RankContext& self) {
    const auto mesh = self.mesh({1}, {"tp"});
    const auto nccl = dtensor::default_async_tp_costs("nccl");
    for (const auto kind : {StepKind::kAllGather, StepKind::kReduceScatter}) {
      const auto large = product_of(kind, 16384);
      dtensor::set_async_tp(mesh, AsyncTp::kAuto, nccl);
      EXPECT_TRUE(dtensor::may_chunk_matmuls(mesh));
      const int64_t parts = dtensor::choose_num_chunks(mesh, large, 1000);
      EXPECT_GT(parts, 0);
      EXPECT_LT(
          dtensor::comm_matmul_us(large, parts, nccl),
          0.9 * dtensor::comm_matmul_us(large, 0, nccl));
      // Latency is all there is.
      EXPECT_EQ(dtensor::choose_num_chunks(mesh, product_of(kind, 8), 1000), 0);
      // Nobody else moves the values.
      dtensor::set_async_tp(
          mesh, AsyncTp::kAuto, dtensor::default_async_tp_costs("cpu"));
      EXPECT_FALSE(dtensor::may_chunk_matmuls(mesh));
      EXPECT_EQ(dtensor::choose_num_chunks(mesh, large, 1000), 0);
      dtensor::set_async_tp(
          mesh, AsyncTp::kOn, dtensor::default_async_tp_costs("cpu"));
      EXPECT_GT(dtensor::choose_num_chunks(mesh, large, 1000), 0);
      EXPECT_LE(dtensor::choose_num_chunks(mesh, large, 1), 1);
      dtensor::set_async_tp(mesh, AsyncTp::kOff);
      EXPECT_EQ(dtensor::choose_num_chunks(mesh, large, 1000), 0);
    }
  });
}

} // namespace
} // namespace weft::tp
