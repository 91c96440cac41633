// Attention where oneDNN multiplies, against its definition in float64.

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/fused/fused_ops.h"
#include "matmul/amx.h"
#include "matmul/library.h"
#include "matmul/onednn.h"

namespace weft::dtensor {
namespace {

using matmul::Library;

class FusedAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (!matmul::onednn::support().has_matmul) {
      GTEST_SKIP() << "oneDNN has no products of batches on this processor";
    }
    register_attention();
    torch::manual_seed(3);
    matmul::set_library(Library::kOneDnn);
  }
  void TearDown() override {
    matmul::set_library(Library::kLibtorch);
    at::set_num_threads(threads_);
  }

 private:
  const int threads_ = at::get_num_threads();
};

struct Case {
  int64_t samples, heads, kv_heads, queries, keys, dim;
  bool is_causal;
  std::optional<double> scale;
};

struct Inputs {
  at::Tensor q, k, v, grad;

  // As projections leave them: [B, L, H, D] with the dims swapped.
  static at::Tensor make(int64_t b, int64_t h, int64_t l, int64_t d) {
    return at::randn({b, l, h, d}).transpose(1, 2);
  }
  explicit Inputs(const Case& c)
      : q(make(c.samples, c.heads, c.queries, c.dim)),
        k(make(c.samples, c.kv_heads, c.keys, c.dim)),
        v(make(c.samples, c.kv_heads, c.keys, c.dim)),
        grad(make(c.samples, c.heads, c.queries, c.dim)) {}

  Inputs to(at::ScalarType dtype) const {
    auto result = *this;
    for (auto* tensor : {&result.q, &result.k, &result.v, &result.grad}) {
      *tensor = tensor->to(dtype);
    }
    return result;
  }
};

// The output and the gradients of query, key and value.
using Results = std::vector<at::Tensor>;

Results run(
    const Inputs& inputs,
    bool is_causal,
    std::optional<double> scale = {},
    const std::optional<at::Tensor>& mask = {}) {
  const auto q = inputs.q.detach().requires_grad_();
  const auto k = inputs.k.detach().requires_grad_();
  const auto v = inputs.v.detach().requires_grad_();
  const auto y = at::scaled_dot_product_attention(
      q, k, v, mask, 0.0, is_causal, scale, /*enable_gqa=*/true);
  y.backward(inputs.grad);
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}

// The definition, all scores at once.
Results run_definition(const Inputs& inputs, const Case& c) {
  const auto q = inputs.q.to(at::kDouble).detach().requires_grad_();
  const auto k = inputs.k.to(at::kDouble).detach().requires_grad_();
  const auto v = inputs.v.to(at::kDouble).detach().requires_grad_();
  const int64_t group = c.heads / c.kv_heads;
  auto scores = q.matmul(k.repeat_interleave(group, 1).transpose(2, 3)) *
                c.scale.value_or(1 / std::sqrt(static_cast<double>(c.dim)));
  if (c.is_causal) {
    const auto unseen = at::ones({c.queries, c.keys}, at::kBool).triu(1);
    scores =
        scores.masked_fill(unseen, -std::numeric_limits<double>::infinity());
  }
  const auto y = scores.softmax(-1).matmul(v.repeat_interleave(group, 1));
  y.backward(inputs.grad.to(at::kDouble));
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}

double relative_error(const at::Tensor& a, const at::Tensor& expected) {
  return ((a.to(at::kDouble) - expected).norm() / expected.norm())
      .item<double>();
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

void expect_close(
    const Results& results,
    const Results& expected,
    double most) {
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].sizes() == expected[i].sizes());
    EXPECT_LE(difference(results[i], expected[i]), most) << i;
  }
}

void expect_same_bits(const Results& results, const Results& expected) {
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(at::equal(results[i], expected[i])) << i;
  }
}

// Some of the samples by themselves give what they give among all.
void expect_same_alone(
    const Inputs& all,
    const Results& results,
    int64_t first,
    int64_t samples) {
  auto part = all;
  for (auto* tensor : {&part.q, &part.k, &part.v, &part.grad}) {
    *tensor = tensor->narrow(0, first, samples);
  }
  Results expected;
  for (const auto& result : results) {
    expected.push_back(result.narrow(0, first, samples));
  }
  expect_same_bits(run(part, /*is_causal=*/true), expected);
}

const std::vector<Case> kCases{
    {2, 4, 4, 128, 128, 32, true, {}},
    {2, 4, 4, 128, 128, 32, false, {}},
    {1, 3, 3, 301, 301, 40, true, {}}, // three blocks, none of them even
    {1, 3, 3, 131, 257, 17, false, {}},
    {1, 3, 3, 131, 257, 17, true, {}}, // keys that no query sees
    {1, 3, 3, 257, 131, 17, true, {}}, // queries that see all keys
    {2, 8, 2, 130, 130, 24, true, {}}, // groups of four heads
    {1, 2, 2, 128, 128, 32, true, 0.5},
    {1, 1, 1, 1100, 1100, 16, true, {}}, // one head a block
    // The same with dims that AMX takes.
    {1, 3, 3, 131, 257, 24, false, {}},
    {1, 3, 3, 131, 257, 24, true, {}},
    {1, 3, 3, 257, 131, 24, true, {}},
    {2, 2, 1, 40, 512, 16, true, {}}, // fewer queries than a block has
    {1, 2, 2, 400, 400, 2, true, {}},
};

TEST_F(FusedAttention, IsItsDefinition) {
  for (const auto& c : kCases) {
    const Inputs inputs(c);
    expect_close(
        run(inputs, c.is_causal, c.scale), run_definition(inputs, c), 1e-4);
  }
}

TEST_F(FusedAttention, OfBFloat16WithoutAmxIsRoundedOnce) {
  for (const auto& c : kCases) {
    if (matmul::amx::is_available() && c.dim % 2 == 0) {
      continue; // AMX multiplies it.
    }
    const auto inputs = Inputs(c).to(at::kBFloat16);
    const auto results = run(inputs, c.is_causal, c.scale);
    const auto wide = run(inputs.to(at::kFloat), c.is_causal, c.scale);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::equal(results[i], wide[i].to(at::kBFloat16))) << i;
    }
  }
}

TEST_F(FusedAttention, OfBFloat16IsItsDefinition) {
  for (const auto& c : kCases) {
    const auto inputs = Inputs(c).to(at::kBFloat16);
    const auto results = run(inputs, c.is_causal, c.scale);
    const auto expected = run_definition(inputs, c);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].scalar_type(), at::kBFloat16);
      // bfloat16 has 8 bits: rounding alone is 0.002.
      EXPECT_LE(relative_error(results[i], expected[i]), 0.005) << i;
    }
  }
}

TEST_F(FusedAttention, OfBFloat16DoesNotDependOnOtherSamples) {
  for (const int threads : {1, 8}) {
    at::set_num_threads(threads);
    const auto all =
        Inputs({16, 8, 8, 384, 384, 64, true, {}}).to(at::kBFloat16);
    const auto results = run(all, true);
    for (const int64_t samples : {8, 1}) {
      expect_same_alone(all, results, 4, samples);
    }
  }
}

TEST_F(FusedAttention, WithAmxDoesNotDependOnTheNumberOfThreads) {
  if (!matmul::amx::is_available()) {
    GTEST_SKIP() << "this processor has no AMX";
  }
  const auto inputs =
      Inputs({2, 3, 3, 700, 700, 32, true, {}}).to(at::kBFloat16);
  const auto one = run(inputs, true);
  at::set_num_threads(4);
  expect_same_bits(run(inputs, true), one);
}

TEST_F(FusedAttention, OfBFloat16DoesNotReadKeysThatNoQuerySees) {
  auto inputs = Inputs({1, 2, 2, 200, 300, 32, true, {}}).to(at::kBFloat16);
  inputs.k.narrow(2, 200, 100).fill_(std::numeric_limits<float>::quiet_NaN());
  inputs.v.narrow(2, 200, 100).fill_(std::numeric_limits<float>::quiet_NaN());
  const auto results = run(inputs, true);
  for (size_t i = 1; i < results.size(); ++i) { // the gradients
    EXPECT_TRUE(results[i].isfinite().all().item<bool>()) << i;
  }
}

TEST_F(FusedAttention, OfBFloat16TakesInputsAtOddPlacesInMemory) {
  const auto inputs = Inputs(kCases[0]).to(at::kBFloat16);
  auto moved = inputs;
  for (auto* tensor : {&moved.q, &moved.k, &moved.v, &moved.grad}) {
    auto odd = at::empty({tensor->numel() + 1}, tensor->options())
                   .narrow(0, 1, tensor->numel())
                   .view(tensor->sizes());
    *tensor = odd.copy_(*tensor);
  }
  expect_same_bits(run(moved, true), run(inputs, true));
}

TEST_F(FusedAttention, OfBFloat16KeepsNaN) {
  auto inputs = Inputs({1, 2, 2, 160, 160, 32, false, {}}).to(at::kBFloat16);
  inputs.k.select(2, 7).fill_(std::numeric_limits<float>::quiet_NaN());
  for (const auto& result : run(inputs, false)) {
    EXPECT_TRUE(result.isnan().all().item<bool>());
  }
}

TEST_F(FusedAttention, OfBFloat16IsTheSameWhereLibtorchMultipliesFloat32) {
  const auto inputs = Inputs(kCases[0]).to(at::kBFloat16);
  const auto results = run(inputs, true);
  matmul::set_library(Library::kLibtorch);
  expect_same_bits(run(inputs, true), results);
}

TEST_F(FusedAttention, LiesInMemoryAsLibtorchs) {
  const Inputs inputs(kCases[0]);
  const auto results = run(inputs, true);
  matmul::set_library(Library::kLibtorch);
  const auto libtorchs = run(inputs, true);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i].strides() == libtorchs[i].strides()) << i;
  }
  expect_close(results, libtorchs, 1e-4);
}

TEST_F(FusedAttention, SumsThatBackwardGetsAreLibtorchs) {
  const Inputs inputs(kCases[2]);
  const auto sums_of = [&] {
    return std::get<1>(at::_scaled_dot_product_flash_attention_for_cpu(
        inputs.q, inputs.k, inputs.v, 0.0, /*is_causal=*/true));
  };
  const auto sums = sums_of();
  matmul::set_library(Library::kLibtorch);
  const auto libtorchs = sums_of();
  ASSERT_TRUE(sums.sizes() == libtorchs.sizes());
  EXPECT_LE(difference(sums, libtorchs), 1e-5);
}

TEST_F(FusedAttention, OfASampleDoesNotDependOnTheOthers) {
  const Case c{4, 6, 6, 200, 200, 32, true, {}};
  const Inputs all(c);
  const auto results = run(all, true);
  for (int64_t sample = 0; sample < c.samples; ++sample) {
    expect_same_alone(all, results, sample, 1);
  }
}

TEST_F(FusedAttention, OfLargeScoresStaysFinite) {
  Inputs inputs({1, 2, 2, 160, 160, 32, true, {}});
  inputs.q *= 300;
  const auto results = run(inputs, true);
  for (const auto& result : results) {
    EXPECT_TRUE(result.isfinite().all().item<bool>());
  }
  // One key takes it all: of the first query the only one that it sees.
  EXPECT_TRUE(at::allclose(results[0].select(2, 0), inputs.v.select(2, 0)));
}

TEST_F(FusedAttention, ProbabilitiesThatWouldBeSubnormalAreZero) {
  // Of two keys the second one's scores are lower by 90 for each query.
  Inputs inputs({1, 1, 1, 160, 160, 32, false, 1.0});
  inputs.q.fill_(1);
  inputs.k.fill_(0);
  inputs.k.narrow(2, 80, 80).fill_(-90.0 / 32);
  inputs.v.narrow(2, 0, 80).fill_(0);
  inputs.v.narrow(2, 80, 80).fill_(1e30);
  EXPECT_TRUE(at::equal(run(inputs, false, 1.0)[0], at::zeros_like(inputs.q)));
}

TEST_F(FusedAttention, KeepsNaN) {
  Inputs inputs({1, 2, 2, 160, 160, 32, false, {}});
  inputs.k.select(2, 7).fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(run(inputs, false)[0].isnan().all().item<bool>());
}

TEST_F(FusedAttention, IsLibtorchsWhereItIsSmallOrMasked) {
  // The op itself: libtorch may take another one for some of these.
  const auto run_op = [](const Inputs& in,
                         double dropout_p,
                         const std::optional<at::Tensor>& mask,
                         std::optional<double> scale) {
    const auto [y, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        in.q, in.k, in.v, dropout_p, /*is_causal=*/false, mask, scale);
    const auto [q_grad, k_grad, v_grad] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            in.grad, in.q, in.k, in.v, y, sums, dropout_p, false, mask, scale);
    return Results{y, sums, q_grad, k_grad, v_grad};
  };
  const auto expect_libtorchs = [&](const Inputs& in, const auto&... more) {
    const auto results = run_op(in, 0.0, more...);
    matmul::set_library(Library::kLibtorch);
    expect_same_bits(results, run_op(in, 0.0, more...));
    matmul::set_library(Library::kOneDnn);
  };
  const Inputs large({1, 2, 2, 200, 200, 32, false, {}});
  expect_libtorchs(
      Inputs({1, 2, 2, 20, 20, 8, false, {}}), std::nullopt, std::nullopt);
  expect_libtorchs(large, at::randn({200, 200}), std::nullopt);
  expect_libtorchs(large, std::nullopt, -0.25);
  expect_libtorchs(large.to(at::kDouble), std::nullopt, std::nullopt);
}

TEST_F(FusedAttention, RepeatsItsBits) {
  const Inputs inputs(kCases[6]);
  const auto first = run(inputs, true);
  for (int i = 0; i < 3; ++i) {
    expect_same_bits(run(inputs, true), first);
  }
}

} // namespace
} // namespace weft::dtensor
