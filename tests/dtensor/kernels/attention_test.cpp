// Attention and cross entropy, in all their forms and however their inputs
// lie, equal one rank: values and gradients.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::fake_line;
using dtensor::test::random;
using weft::test::RankContext;
using weft::test::run_ranks;
using Tensors = std::vector<at::Tensor>;
using AttentionFunction = std::function<at::Tensor(const Tensors&)>;

struct Case {
  std::string name;
  AttentionFunction function;
  Tensors inputs;
  /// Placements of each input on a line; each row one way.
  std::vector<Placements> ways;
};

const auto kR = Replicate();

at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.is_floating_point() ? tensor.clone().requires_grad_()
                                    : tensor.clone();
}

// Output and gradients, whole.
Tensors results(
    const Case& each,
    const mesh::DeviceMesh& mesh,
    const std::vector<Placements>& where) {
  manual_seed(mesh, 2);
  Tensors leaves;
  for (size_t i = 0; i < each.inputs.size(); ++i) {
    leaves.push_back(distributed(leaf(each.inputs[i]), mesh, where[i]));
  }
  const auto output = full_tensor(each.function(leaves));
  (output * random(output.sizes(), 77)).sum().backward();
  Tensors all{output.detach()};
  for (const auto& input : leaves) {
    all.push_back(
        input.grad().defined() ? full_tensor(input.grad()) : at::Tensor());
  }
  return all;
}

Tensors plain_results(const Case& each) {
  Tensors leaves;
  for (const auto& input : each.inputs) {
    leaves.push_back(leaf(input));
  }
  const auto output = each.function(leaves);
  (output * random(output.sizes(), 77)).sum().backward();
  Tensors all{output.detach()};
  for (const auto& input : leaves) {
    all.push_back(input.grad());
  }
  return all;
}

void compare(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (actual[i].defined()) {
      expect_close(
          actual[i],
          expected[i],
          1e-10,
          i == 0 ? "output" : "gradient of input " + std::to_string(i - 1));
    }
  }
}

std::vector<Placements> on_line(const Placements& way) {
  std::vector<Placements> where;
  for (const auto& placement : way) {
    where.push_back({placement});
  }
  return where;
}

// `is_random`: plain libtorch draws other numbers.
void check(const std::vector<Case>& cases, bool is_random = false) {
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    const auto expected = results(
        each,
        fake_line(0, 1),
        std::vector<Placements>(each.inputs.size(), {kR}));
    if (!is_random) {
      compare(expected, plain_results(each));
    }
    for (const int n : {2, 3, 4}) {
      run_ranks(n, [&](RankContext& self) {
        const auto mesh = self.mesh({n}, {"tp"});
        for (const auto& way : each.ways) {
          SCOPED_TRACE(to_string(way) + " on " + std::to_string(n));
          compare(results(each, mesh, on_line(way)), expected);
        }
      });
    }
  }
}

struct Options {
  double dropout_p = 0;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;
  bool gqa = false;
};

AttentionFunction attention(const Options& options = {}) {
  return [options](const Tensors& x) {
    return at::scaled_dot_product_attention(
        x[0],
        x[1],
        x[2],
        x.size() > 3 ? std::optional(x[3]) : std::nullopt,
        options.dropout_p,
        options.is_causal,
        options.scale,
        options.gqa);
  };
}

// Batch, heads, sequence, width.
Tensors qkv(c10::IntArrayRef q, int64_t kv_heads, int64_t keys, int64_t width) {
  return {
      random(q, 1),
      random({q[0], kv_heads, keys, q[3]}, 2),
      random({q[0], kv_heads, keys, width}, 3)};
}

std::vector<Placements> ways(int64_t ndim) {
  std::vector<Placements> all{{kR, kR, kR}};
  for (int64_t d = 0; d < ndim; ++d) {
    all.push_back({Shard(d), Shard(d), Shard(d)});
    all.push_back({Shard(d), kR, kR});
  }
  all.push_back({Partial(), Shard(0), kR});
  return all;
}

std::vector<Placements> masked_ways(int64_t mask_ndim) {
  std::vector<Placements> all;
  for (auto way : ways(4)) {
    way.push_back(kR);
    all.push_back(way);
    for (int64_t d = 0; d < mask_ndim; ++d) {
      way.back() = Shard(d);
      all.push_back(way);
    }
  }
  return all;
}

Case masked(std::string name, at::IntArrayRef mask, bool is_bool = false) {
  auto inputs = qkv({2, 5, 3, 4}, 5, 6, 4);
  auto values = random(mask, 4);
  inputs.push_back(is_bool ? values.gt(-1) : values);
  return {
      std::move(name),
      attention(),
      inputs,
      masked_ways(static_cast<int64_t>(mask.size()))};
}

TEST(Attention, EqualsOneRankHoweverItLies) {
  check(
      {{"plain", attention(), qkv({2, 5, 3, 4}, 5, 6, 4), ways(4)},
       {"causal",
        attention({.is_causal = true}),
        qkv({2, 4, 5, 4}, 4, 5, 4),
        ways(4)},
       {"scale and other width",
        attention({.scale = 0.3}),
        qkv({3, 4, 3, 4}, 4, 5, 6),
        ways(4)},
       {"grouped heads",
        attention({.gqa = true}),
        qkv({2, 4, 3, 4}, 2, 3, 4),
        ways(4)},
       {"uneven grouped heads",
        attention({.is_causal = true, .gqa = true}),
        qkv({1, 6, 3, 4}, 3, 3, 4),
        ways(4)},
       {"three dims",
        attention({.is_causal = true}),
        {random({5, 3, 4}, 1), random({5, 3, 4}, 2), random({5, 3, 4}, 3)},
        ways(3)}});
}

TEST(Attention, MasksOfAllShapes) {
  check(
      {masked("[B, H, T, S]", {2, 5, 3, 6}),
       masked("[B, 1, 1, S]", {2, 1, 1, 6}),
       masked("[H, T, S]", {5, 3, 6}),
       masked("[T, S]", {3, 6}),
       masked("[1, S] of bools", {1, 6}, /*is_bool=*/true)});
}

TEST(Attention, DropoutIsTheSameOnEveryMesh) {
  check(
      {{"dropout",
        attention({.dropout_p = 0.4}),
        qkv({2, 5, 3, 4}, 5, 6, 4),
        ways(4)},
       {"causal with dropout",
        attention({.dropout_p = 0.4, .is_causal = true}),
        qkv({2, 4, 5, 4}, 4, 5, 4),
        ways(4)}},
      /*is_random=*/true);
}

TEST(Attention, TwoMeshDims) {
  const Case each{
      "both",
      attention({.dropout_p = 0.3, .is_causal = true}),
      qkv({3, 5, 4, 4}, 5, 4, 4),
      {}};
  const auto expected = results(
      each, fake_line(0, 1), std::vector<Placements>(3, Placements{kR}));
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (const Placements& way : std::vector<Placements>{
             {Shard(0), Shard(1)},
             {Shard(1), Shard(1)},
             {Shard(0), Shard(2)},
             {Shard(2), Shard(2)},
             {Shard(2), Shard(1)}}) {
      SCOPED_TRACE(to_string(way));
      compare(results(each, mesh, std::vector<Placements>(3, way)), expected);
    }
  });
}

// ---- cross entropy ----------------------------------------------------------

namespace F = torch::nn::functional;

at::Tensor classes(c10::IntArrayRef sizes, int64_t below) {
  auto all = random(sizes, 5).mul(100).abs().to(at::kLong).remainder(below);
  all.view({-1})[0] = -100;
  return all;
}

AttentionFunction cross_entropy(const F::CrossEntropyFuncOptions& options) {
  return [options](const Tensors& x) {
    auto own = options;
    if (x.size() > 2) {
      own.weight(x[2].detach());
    }
    return F::cross_entropy(x[0], x[1], own);
  };
}

std::vector<Case> cross_entropies(
    const std::string& name,
    const F::CrossEntropyFuncOptions& options) {
  const auto weight = random({5}, 6).abs();
  const std::vector<Placements> rows{
      {kR, kR, kR}, {Shard(0), Shard(0), kR}, {Shard(1), kR, Shard(0)}};
  return {
      {name + ", rows",
       cross_entropy(options),
       {random({7, 5}, 1), classes({7}, 5), weight},
       rows},
      {name + ", no weight",
       cross_entropy(options),
       {random({7, 5}, 1), classes({7}, 5)},
       {{kR, kR}, {Shard(0), Shard(0)}, {Shard(1), kR}, {Shard(0), kR}}},
      {name + ", spatial",
       cross_entropy(options),
       {random({3, 5, 4}, 1), classes({3, 4}, 5), weight},
       rows},
  };
}

TEST(CrossEntropy, EqualsOneRankInAllForms) {
  using F::CrossEntropyFuncOptions;
  for (const double smoothing : {0.0, 0.1}) {
    const auto with = [&](auto reduction) {
      return CrossEntropyFuncOptions().reduction(reduction).label_smoothing(
          smoothing);
    };
    check(cross_entropies("mean", with(torch::kMean)));
    check(cross_entropies("sum", with(torch::kSum)));
    check(cross_entropies("none", with(torch::kNone)));
    check(
        {{"probabilities",
          cross_entropy(with(torch::kMean)),
          {random({7, 5}, 1), random({7, 5}, 2).softmax(1)},
          {{kR, kR}, {Shard(0), Shard(0)}, {Shard(1), Shard(1)}}},
         {"one row",
          cross_entropy(with(torch::kMean)),
          {random({5}, 1), at::full({}, 3, at::kLong)},
          {{kR, kR}, {Shard(0), kR}}}});
  }
}

} // namespace
} // namespace weft::dtensor
