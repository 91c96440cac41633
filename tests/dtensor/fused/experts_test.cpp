// A mixture of experts against a loop over tokens: values and gradients, on one
// rank and with experts over a mesh dim, and what is sent.

#include <array>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/fused/experts.h"
#include "dtensor/fused/grouped_mm.h"
#include "dtensor/init/meta_kernels.h"
#include "dtensor/tensor/parameter_info.h"
#include "matmul/library.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/support/expect_error.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_line;
using dtensor::test::random;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kDim = 6;
constexpr int64_t kFfn = 5;
constexpr size_t kIndex = 1;

// x, expert_index, expert_weight, gate_up_proj, down_proj. No token goes to the
// last expert, and the first gets most.
Tensors inputs_of(std::vector<int64_t> token_sizes, int64_t E, int64_t k) {
  auto x_sizes = token_sizes;
  x_sizes.push_back(kDim);
  auto pair_sizes = token_sizes;
  pair_sizes.push_back(k);
  auto logit_sizes = token_sizes;
  logit_sizes.push_back(E);
  auto logits = random(logit_sizes, 2);
  logits.select(-1, 0).add_(0.5);
  if (E > k) {
    logits.select(-1, E - 1).fill_(-9);
  }
  return {
      random(x_sizes, 1),
      std::get<1>(logits.topk(k, -1)),
      random(pair_sizes, 3),
      random({E, 2 * kFfn, kDim}, 4),
      random({E, kDim, kFfn}, 5)};
}

at::Tensor run_experts(const Tensors& in) {
  return experts(in[0], in[1], in[2], in[3], in[4]);
}

// Token by token.
at::Tensor loop_over_tokens(const Tensors& in) {
  const auto x = in[0].reshape({-1, kDim});
  const auto index = in[1].reshape({x.size(0), -1});
  const auto weight = in[2].reshape(index.sizes());
  Tensors rows;
  for (int64_t n = 0; n < x.size(0); ++n) {
    auto row = at::zeros({kDim}, x.options());
    for (int64_t j = 0; j < index.size(1); ++j) {
      const auto e = index[n][j].item<int64_t>();
      const auto both = in[3][e].mv(x[n]).chunk(2);
      row = row + weight[n][j] * in[4][e].mv(at::silu(both[0]) * both[1]);
    }
    rows.push_back(row);
  }
  return rows.empty() ? x.clone() : at::stack(rows).view(in[0].sizes());
}

// The output, and the gradients of all inputs but the index.
Tensors with_gradients(
    const std::function<at::Tensor(const Tensors&)>& function,
    const Tensors& inputs) {
  auto leaves = inputs;
  Tensors differentiable;
  for (size_t i = 0; i < leaves.size(); ++i) {
    leaves[i] = inputs[i].detach();
    if (i != kIndex) {
      differentiable.push_back(leaves[i].requires_grad_());
    }
  }
  const auto output = function(leaves);
  const auto weights = random(output.sizes(), 77).to(output.scalar_type());
  auto results = torch::autograd::grad({output}, differentiable, {weights});
  results.insert(results.begin(), output.detach());
  return results;
}

const std::vector<std::string> kNames{
    "output",
    "x",
    "expert_weight",
    "gate_up_proj",
    "down_proj"};

// ---- plain ------------------------------------------------------------------

TEST(Experts, EqualALoopOverTokens) {
  for (const int64_t E : {1, 2, 5, 8}) {
    for (const int64_t k : {1, 2, 3}) {
      if (k > E) {
        continue;
      }
      for (const std::vector<int64_t>& tokens :
           {std::vector<int64_t>{1}, {17}, {3, 7}, {2, 3, 4}}) {
        const auto in = inputs_of(tokens, E, k);
        const auto actual = with_gradients(run_experts, in);
        const auto expected = with_gradients(loop_over_tokens, in);
        for (size_t i = 0; i < actual.size(); ++i) {
          expect_close(actual[i], expected[i], 1e-12, kNames[i]);
        }
      }
    }
  }
}

TEST(Experts, NoTokens) {
  auto in = inputs_of({3}, 4, 2);
  for (size_t i = 0; i < 3; ++i) {
    in[i] = in[i].narrow(0, 0, 0);
  }
  const auto results = with_gradients(run_experts, in);
  EXPECT_EQ(results[0].sizes(), (std::vector<int64_t>{0, kDim}));
  EXPECT_TRUE(at::equal(results[3], at::zeros_like(in[3])));
  EXPECT_TRUE(at::equal(results[4], at::zeros_like(in[4])));
}

TEST(Experts, LowPrecision) {
  const auto in = inputs_of({40}, 4, 2);
  const auto expected = with_gradients(loop_over_tokens, in);
  Tensors low;
  for (const auto& tensor : in) {
    low.push_back(
        tensor.is_floating_point() ? tensor.to(at::kBFloat16) : tensor);
  }
  low[2] = in[2].to(at::kFloat); // a router's probabilities
  const auto actual = with_gradients(run_experts, low);
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), i == 2 ? at::kFloat : at::kBFloat16);
    const auto error = (actual[i].to(at::kDouble) - expected[i]).norm();
    EXPECT_LT((error / expected[i].norm()).item<double>(), 1.5e-2) << kNames[i];
  }
}

TEST(Experts, SecondDerivatives) {
  const auto in = inputs_of({4}, 3, 2);
  Tensors results;
  for (const auto& function : {run_experts, loop_over_tokens}) {
    auto leaves = in;
    for (const size_t i : {0, 2, 3, 4}) {
      leaves[i] = in[i].clone().requires_grad_();
    }
    const auto y = function(leaves).pow(3).sum();
    const auto grads = torch::autograd::grad(
        {y}, {leaves[0], leaves[2], leaves[3], leaves[4]}, {}, true, true);
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const auto& grad : grads) {
      sum = sum + grad.pow(2).sum();
    }
    sum.backward();
    Tensors second;
    for (const size_t i : {0, 2, 3, 4}) {
      second.push_back(leaves[i].grad().flatten());
    }
    results.push_back(at::cat(second));
  }
  const double scale = results[1].abs().max().item<double>();
  expect_close(results[0] / scale, results[1] / scale, 1e-12, "second");
}

// Nothing but products of rows that exist: no padding.
TEST(Experts, GroupedProductsHaveGradientsOfTheirWeightsLayout) {
  const auto weight = random({3, 4, 5}, 1).requires_grad_();
  const auto rows = random({6, 5}, 2);
  const auto y = grouped_mm(rows, weight.transpose(1, 2), {2, 0, 4});
  expect_close(
      y.detach(),
      at::cat({rows.narrow(0, 0, 2).mm(weight[0].t()),
               rows.narrow(0, 2, 4).mm(weight[2].t())})
          .detach(),
      1e-14,
      "product");
  y.sum().backward();
  EXPECT_TRUE(weight.grad().is_contiguous());
  EXPECT_TRUE(at::equal(weight.grad()[1], at::zeros_like(weight[1])));
}

// Rows in chunks of several sizes, which oneDNN multiplies.
TEST(Experts, GroupedProductsOfManyRows) {
  if (!matmul::this_host().onednn_problem.empty()) {
    GTEST_SKIP() << matmul::this_host().onednn_problem;
  }
  const GroupCounts counts{600, 0, 17, 5, 256};
  const auto rows = random({878, 128}, 1);
  const auto matrices = random({5, 128, 192}, 2);
  const auto run = [&](at::ScalarType dtype) {
    const auto r = rows.to(dtype).detach().requires_grad_();
    const auto m = matrices.to(dtype).detach().requires_grad_();
    const auto product = grouped_mm(r, m, counts);
    product.square().sum().backward();
    return Tensors{product.detach(), r.grad(), m.grad()};
  };
  const auto expected = run(at::kDouble);
  matmul::set_library(matmul::Library::kOneDnn);
  const auto results = run(at::kFloat);
  matmul::set_library(matmul::Library::kLibtorch);
  for (size_t i = 0; i < results.size(); ++i) {
    const auto error = (results[i] - expected[i]).norm() / expected[i].norm();
    EXPECT_LT(error.item<double>(), 1e-6) << i;
  }
}

TEST(Experts, MistakesNameBothSides) {
  const auto in = inputs_of({5}, 4, 2);
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { experts(in[0], in[1], in[2], in[3], in[4].narrow(0, 0, 3)); }),
      HasSubstr("gate_up_proj [4, 10, 6], down_proj [3, 6, 5]"));
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>(
          [&] { experts(in[0], in[1] + 2, in[2], in[3], in[4]); }),
      HasSubstr(
          "expert_index: got 4, expected less than the number of experts, 4"));
}

TEST(Experts, CountsOfEachSequence) {
  const auto index =
      at::tensor({0, 1, 0, 2, 3, 3, 1, 1}, at::kLong).view({2, 2, 2});
  EXPECT_TRUE(at::equal(
      expert_counts(index, 4),
      at::tensor({2, 1, 1, 0, 0, 2, 0, 2}, at::kLong).view({2, 4})));
}

// ---- DTensors ---------------------------------------------------------------

struct ExpertLayout {
  Placements tokens;
  Placements weights;
  Placements output;
};

// One rank of `mesh`, whose last dim is the experts', against one rank alone.
void check_layout(
    const mesh::DeviceMesh& mesh,
    const Tensors& in,
    const Tensors& expected,
    const ExpertLayout& layout) {
  Tensors placed;
  Tensors differentiable;
  for (size_t i = 0; i < in.size(); ++i) {
    auto leaf = in[i].clone();
    leaf.set_requires_grad(i != kIndex);
    placed.push_back(
        distributed(leaf, mesh, i < 3 ? layout.tokens : layout.weights));
    if (i != kIndex) {
      differentiable.push_back(placed[i]);
    }
  }
  const auto output = run_experts(placed);
  if (mesh.size(mesh.ndim() - 1) > 1) {
    EXPECT_EQ(spec_of(output).placements(), layout.output);
  }
  const auto whole = full_tensor(output);
  expect_close(whole.detach(), expected[0], 1e-12, "output");
  (whole * random(whole.sizes(), 77)).sum().backward();
  for (size_t i = 0; i < differentiable.size(); ++i) {
    const auto& grad = differentiable[i].grad();
    EXPECT_EQ(
        local_sizes(spec_of(grad), grad.sizes()), test::local_of(grad).sizes());
    expect_close(full_tensor(grad), expected[i + 1], 1e-12, kNames[i + 1]);
  }
}

std::vector<ExpertLayout> layouts_of_a_line() {
  return {
      {{Shard(1)}, {Shard(0)}, {Shard(1)}},
      {{Shard(0)}, {Shard(0)}, {Shard(0)}},
      {{test::kR}, {Shard(0)}, {Partial()}},
      {{Shard(1)}, {test::kR}, {Shard(1)}},
      {{test::kR}, {test::kR}, {test::kR}}};
}

class ExpertsOnRanks : public ::testing::TestWithParam<int> {};

// 4 experts on 3 ranks: 2, 2, 0; 7 tokens: 3, 3, 1.
TEST_P(ExpertsOnRanks, EqualOneRank) {
  for (const int64_t E : {4, 5}) {
    const auto in = inputs_of({2, 7}, E, 2);
    const auto expected = with_gradients(loop_over_tokens, in);
    run_ranks(GetParam(), [&](RankContext& self) {
      for (const auto& layout : layouts_of_a_line()) {
        SCOPED_TRACE(to_string(layout.tokens) + to_string(layout.weights));
        check_layout(test::line(self), in, expected, layout);
      }
    });
  }
}

// A sequence of one token: the other ranks have none, and take part.
TEST_P(ExpertsOnRanks, RanksWithoutTokens) {
  const auto in = inputs_of({1, 1}, 4, 2);
  const auto expected = with_gradients(loop_over_tokens, in);
  run_ranks(GetParam(), [&](RankContext& self) {
    check_layout(
        test::line(self), in, expected, {{Shard(1)}, {Shard(0)}, {Shard(1)}});
  });
}

TEST_P(ExpertsOnRanks, GivenSizesOfShards) {
  const auto in = inputs_of({2, 7}, 4, 2);
  const auto expected = with_gradients(loop_over_tokens, in);
  const std::vector<int64_t> sizes = GetParam() == 2
                                         ? std::vector<int64_t>{1, 3}
                                         : std::vector<int64_t>{0, 3, 1};
  run_ranks(GetParam(), [&](RankContext& self) {
    for (const auto& tokens : {Shard(1), test::kR}) {
      const auto output = tokens.is_shard() ? tokens : Partial();
      check_layout(
          test::line(self),
          in,
          expected,
          {{tokens}, {Shard(0, sizes)}, {output}});
    }
  });
}

// Three all_to_alls forward, of counts, rows and results; two backward.
TEST_P(ExpertsOnRanks, SendExactlyTheRows) {
  const auto in = inputs_of({2, 7}, 4, 2);
  run_ranks(GetParam(), [&](RankContext& self) {
    const auto mesh = test::line(self);
    Tensors placed;
    for (size_t i = 0; i < in.size(); ++i) {
      placed.push_back(distributed(in[i], mesh, {i < 3 ? Shard(1) : Shard(0)}));
      placed[i].set_requires_grad(i != kIndex);
    }
    parameter_info(placed[3]).fqn = "mlp.experts.gate_up_proj";
    auto& flight_recorder = mesh.group(0).flight_recorder();
    flight_recorder.reset();
    const auto output = run_experts(placed);
    ASSERT_EQ(flight_recorder.entries().size(), 3U);
    const auto pairs = test::local_of(placed[1]).numel();
    const auto row_bytes = int64_t{kDim * sizeof(double)};
    for (const auto& entry : flight_recorder.entries()) {
      EXPECT_EQ(entry.op, "all_to_all");
      EXPECT_EQ(entry.name, "mlp.experts.gate_up_proj");
    }
    EXPECT_EQ(flight_recorder.entries()[1].shape[0], pairs * kDim);
    EXPECT_GE(flight_recorder.entries()[1].bytes, pairs * row_bytes);
    EXPECT_EQ(
        flight_recorder.entries()[2].bytes, flight_recorder.entries()[1].bytes);
    flight_recorder.reset();
    output.backward(at::ones_like(output));
    ASSERT_EQ(flight_recorder.entries().size(), 2U);
    for (const auto& entry : flight_recorder.entries()) {
      EXPECT_EQ(entry.op, "all_to_all");
      EXPECT_EQ(entry.name, "mlp.experts.gate_up_proj");
    }
  });
}

TEST_P(ExpertsOnRanks, CountsAreOfWholeSequences) {
  const auto index = inputs_of({3, 2, 7}, 4, 2)[1];
  const auto expected = expert_counts(index, 4);
  run_ranks(GetParam(), [&](RankContext& self) {
    for (const auto& placement : {test::kR, Shard(0), Shard(1), Shard(2)}) {
      const auto counts =
          expert_counts(distributed(index, test::line(self), {placement}), 4);
      EXPECT_FALSE(spec_of(counts).has_partial());
      EXPECT_TRUE(at::equal(full_tensor(counts), expected))
          << placement.to_string();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ExpertsOnRanks,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

// Batch over one mesh dim, sequence and experts over the other.
TEST(Experts, OnAMeshOfTwoDims) {
  const auto in = inputs_of({3, 5}, 4, 2);
  const auto expected = with_gradients(loop_over_tokens, in);
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    check_layout(
        mesh,
        in,
        expected,
        {{Shard(0), Shard(1)}, {test::kR, Shard(0)}, {Shard(0), Shard(1)}});
    check_layout(
        mesh,
        in,
        expected,
        {{Shard(0), test::kR}, {test::kR, Shard(0)}, {Shard(0), Partial()}});
  });
}

TEST(Experts, WithAGraphOfTheGradient) {
  const auto in = inputs_of({2, 4}, 4, 2);
  const auto norm_of_gradient = [&](const Tensors& leaves) {
    const auto y = run_experts(leaves).pow(2).sum();
    const auto grad = torch::autograd::grad(
        {y}, {leaves[0]}, {}, true, /*create_graph=*/true)[0];
    grad.pow(2).sum().backward();
    return leaves[3].grad();
  };
  auto alone = in;
  alone[0] = in[0].clone().requires_grad_();
  alone[3] = in[3].clone().requires_grad_();
  const auto expected = norm_of_gradient(alone);
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = test::line(self);
    for (const auto& tokens : {Shard(1), test::kR}) {
      Tensors placed;
      for (size_t i = 0; i < in.size(); ++i) {
        placed.push_back(
            distributed(in[i].clone(), mesh, {i < 3 ? tokens : Shard(0)}));
      }
      placed[0].requires_grad_();
      placed[3].requires_grad_();
      expect_close(
          full_tensor(norm_of_gradient(placed)), expected, 1e-10, "second");
    }
  });
}

// A dry run: even shares, and as many collectives.
TEST(Experts, OnTheMetaDevice) {
  ensure_meta_kernels();
  const auto mesh = fake_line(1, 3);
  const auto meta = [&](std::vector<int64_t> sizes, Placement placement) {
    const DTensorSpec spec(mesh, {placement});
    const auto options = at::TensorOptions().device(at::kMeta);
    FromLocalOptions whole;
    whole.sizes = sizes;
    return from_local(
        at::empty(local_sizes(spec, sizes), options), mesh, {placement}, whole);
  };
  for (const auto& tokens : {Shard(1), test::kR}) {
    mesh.group(0).flight_recorder().reset();
    const auto x = meta({2, 7, kDim}, tokens).requires_grad_();
    const auto weights = meta({4, 2 * kFfn, kDim}, Shard(0)).requires_grad_();
    const auto y = experts(
        x,
        meta({2, 7, 2}, tokens).to(at::kLong),
        meta({2, 7, 2}, tokens),
        weights,
        meta({4, kDim, kFfn}, Shard(0)));
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(weights.grad().sizes(), weights.sizes());
    int64_t exchanges = 0;
    for (const auto& entry : mesh.group(0).flight_recorder().entries()) {
      exchanges += entry.op == "all_to_all" ? 1 : 0;
    }
    EXPECT_EQ(exchanges, tokens.is_shard() ? 5 : 0);
  }
}

TEST(Experts, PartsOfAnExpertAreRefused) {
  const auto in = inputs_of({2, 4}, 4, 2);
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = test::line(self);
    const auto message = message_of_thrown<c10::ValueError>([&] {
      experts(
          distributed(in[0], mesh, {test::kR}),
          distributed(in[1], mesh, {test::kR}),
          distributed(in[2], mesh, {test::kR}),
          distributed(in[3], mesh, {Shard(1)}),
          distributed(in[4], mesh, {Shard(2)}));
    });
    EXPECT_THAT(message, HasSubstr("Shard(0) over at most one mesh dim"));
    EXPECT_THAT(message, HasSubstr("Shard the experts, not their features"));
  });
}

} // namespace
} // namespace weft::dtensor
