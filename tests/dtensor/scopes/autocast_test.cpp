// Unmodified code under libtorch's autocast: DTensors compute what one rank's
// tensors do, within bfloat16's steps, and what moves is bfloat16.

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/autocast.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"

namespace weft::dtensor {
namespace {

namespace F = torch::nn::functional;
using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using weft::test::RankContext;
using weft::test::run_ranks;

constexpr int64_t kTokens = 6;
constexpr int64_t kDim = 12;
constexpr int64_t kClasses = 10;
constexpr int kSteps = 10;

struct MlpImpl : torch::nn::Module {
  MlpImpl()
      : up(register_module("up", torch::nn::Linear(kDim, 24))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})))),
        down(register_module("down", torch::nn::Linear(24, kDim))),
        head(register_module("head", torch::nn::Linear(kDim, kClasses))) {}
  at::Tensor forward(const at::Tensor& x) {
    return head(x + down(torch::gelu(up(norm(x)))));
  }
  torch::nn::Linear up;
  torch::nn::LayerNorm norm;
  torch::nn::Linear down, head;
};

struct AttentionBlockImpl : torch::nn::Module {
  AttentionBlockImpl() {
    for (auto* each : {&q, &k, &v, &o}) {
      const std::string name(1, "qkvo"[each - &q]);
      *each = register_module(
          name,
          torch::nn::Linear(torch::nn::LinearOptions(kDim, kDim).bias(false)));
    }
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
    head = register_module("head", torch::nn::Linear(kDim, kClasses));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto h = norm(x);
    const auto heads = [&](torch::nn::Linear& linear) {
      return linear(h)
          .view({x.size(0), x.size(1), 6, kDim / 6})
          .transpose(1, 2);
    };
    const auto q_heads = heads(q);
    const auto k_heads = heads(k);
    const auto v_heads = heads(v);
    const auto attended = at::scaled_dot_product_attention(
        q_heads, k_heads, v_heads, {}, 0.0, /*is_causal=*/true);
    return head(
        x + o(attended.transpose(1, 2).reshape({x.size(0), x.size(1), kDim})));
  }
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Mlp);
TORCH_MODULE(AttentionBlock);

// Numbers by name, the same however they are cut.
void fill(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(random(parameter.sizes(), seed++, at::kFloat) * 0.4);
  }
}

// Column-parallel, row-parallel or whole, by name.
Placement cut_of(const std::string& name) {
  const bool is_weight = name.ends_with("weight");
  if (name.starts_with("norm")) {
    return kR;
  }
  if (name.starts_with("down") || name.starts_with("o.")) {
    return is_weight ? Shard(1) : kR;
  }
  return Shard(0);
}

template <class Module>
Module build_on(const mesh::DeviceMesh& mesh) {
  Module whole;
  fill(*whole);
  Module built{nullptr};
  {
    const DeferredInit scope;
    built = Module();
  }
  for (auto& item : built->named_parameters()) {
    Placements placements(mesh.ndim(), kR);
    placements.back() = cut_of(item.key());
    set_placements(item.value(), mesh, placements);
    parameter_info(item.value()).fqn = item.key();
  }
  materialize(*built, /*seed=*/3);
  const at::NoGradGuard no_grad;
  for (auto& item : built->named_parameters()) {
    item.value().copy_(distributed(
        whole->named_parameters()[item.key()].detach(),
        mesh,
        spec_of(item.value()).placements()));
  }
  return built;
}

struct StepResults {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;
};

at::Tensor input() {
  return random({2, kTokens, kDim}, 50, at::kFloat);
}

at::Tensor target() {
  return at::arange(2 * kTokens, at::kLong).mul(7).remainder(kClasses);
}

at::Tensor whole(const at::Tensor& tensor) {
  return is_dtensor(tensor) ? full_tensor(tensor) : tensor;
}

// Losses of so many steps of SGD, and the first one's gradients.
template <class Module>
StepResults train(Module& module, const at::Tensor& x, const at::Tensor& y) {
  StepResults results;
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast scope(at::kCPU);
      const auto logits = module(x);
      EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
      loss = F::cross_entropy(logits.flatten(0, 1), y);
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
    }
    loss.backward();
    results.losses.push_back(whole(loss).template item<double>());
    for (auto& item : module->named_parameters()) {
      EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat) << item.key();
      if (step == 0) {
        results.gradients[item.key()] = whole(item.value().grad()).clone();
      }
    }
    optimizer.step();
  }
  return results;
}

// Eight bits of mantissa, and sums of a dozen terms in another order.
constexpr double kStep = 1.0 / 64;

void expect_near(const StepResults& actual, const StepResults& expected) {
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], 2 * kStep)
        << "loss of step " << step;
  }
  for (const auto& [name, gradient] : expected.gradients) {
    const auto& own = actual.gradients.at(name);
    const double error = (own - gradient).norm().item<double>();
    EXPECT_LE(error, kStep * gradient.norm().item<double>()) << name;
  }
}

// bfloat16 in every collective of tp between activations, and something of it.
void expect_bfloat16(const mesh::Communicator& group) {
  // Statistics of the loss, float32 gradients of whole parameters, and those
  // that train() asks for as a whole.
  const std::set<std::string> floats{
      "cross_entropy", "partial gradients", "redistribute"};
  int64_t halves = 0;
  for (const auto& entry : group.flight_recorder().entries()) {
    if (!floats.contains(entry.name)) {
      EXPECT_EQ(entry.dtype, at::kBFloat16) << entry.op << " " << entry.name;
      ++halves;
    }
  }
  // Forward and backward of every step.
  EXPECT_GE(halves, 2 * kSteps);
}

template <class Module>
void check() {
  Module plain;
  fill(*plain);
  const auto expected = train(plain, input(), target());
  EXPECT_LT(expected.losses.back(), expected.losses.front() - 0.1);
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{1, 2}, {1, 3}, {2, 2}}) {
    run_ranks(static_cast<int>(shape[0] * shape[1]), [&](RankContext& self) {
      SCOPED_TRACE(std::to_string(shape[0]) + "x" + std::to_string(shape[1]));
      const auto mesh = self.mesh(shape, {"dp", "tp"});
      auto module = build_on<Module>(mesh);
      mesh.group(1).flight_recorder().reset();
      const auto x = distributed(input(), mesh, {Shard(0), kR});
      const auto y = distributed(target(), mesh, {Shard(0), kR});
      expect_near(train(module, x, y), expected);
      expect_bfloat16(mesh.group(1));
    });
  }
}

TEST(Autocast, AnMlpEqualsOneRank) {
  check<Mlp>();
}

TEST(Autocast, AnAttentionBlockEqualsOneRank) {
  check<AttentionBlock>();
}

// libtorch's switches alone.
struct RawAutocast {
  RawAutocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~RawAutocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

struct OpCase {
  std::string name;
  std::vector<int64_t> a, b;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> op;
};

std::vector<OpCase> listed_ops() {
  return {
      {"mm", {4, 6}, {6, 2}, [](auto& a, auto& b) { return a.mm(b); }},
      {"matmul",
       {2, 4, 6},
       {6, 2},
       [](auto& a, auto& b) { return a.matmul(b); }},
      {"bmm", {2, 4, 6}, {2, 6, 2}, [](auto& a, auto& b) { return a.bmm(b); }},
      {"baddbmm",
       {2, 4, 4},
       {2, 4, 4},
       [](auto& a, auto& b) { return at::baddbmm(a, a, b); }},
      {"addmm",
       {4, 4},
       {4, 4},
       [](auto& a, auto& b) { return at::addmm(a, a, b); }},
      {"linear",
       {4, 6},
       {2, 6},
       [](auto& a, auto& b) { return at::linear(a, b); }},
      {"conv1d",
       {2, 4, 6},
       {2, 4, 3},
       [](auto& a, auto& b) { return at::conv1d(a, b); }},
      {"conv2d",
       {2, 4, 6, 6},
       {2, 4, 3, 3},
       [](auto& a, auto& b) { return at::conv2d(a, b); }},
      {"attention",
       {2, 2, 4, 4},
       {2, 2, 4, 4},
       [](auto& a, auto& b) {
         return at::scaled_dot_product_attention(a, b, b);
       }},
      {"mse_loss",
       {4, 6},
       {4, 6},
       [](auto& a, auto& b) { return at::mse_loss(a.mm(b.t()), b.mm(b.t())); }},
      {"softmax of a product",
       {4, 6},
       {6, 2},
       [](auto& a, auto& b) { return a.mm(b).softmax(1); }},
      {"cat promotes", {4, 4}, {4, 4}, [](auto& a, auto& b) {
         return at::cat({a.mm(b), a});
       }}};
}

TEST(Autocast, OpsOfItsListsEqualOneRankWithLibtorchsSwitches) {
  for (const auto& each : listed_ops()) {
    SCOPED_TRACE(each.name);
    const auto a = random(each.a, 1, at::kFloat).requires_grad_();
    const auto b = random(each.b, 2, at::kFloat).requires_grad_();
    at::Tensor expected;
    {
      const RawAutocast scope;
      expected = each.op(a, b);
    }
    expected.to(at::kFloat).square().sum().backward();
    run_ranks(2, [&](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& cut : {kR, Shard(0), Shard(1)}) {
        SCOPED_TRACE(cut.to_string());
        const auto x =
            distributed(a.detach().clone().requires_grad_(), mesh, {cut});
        const auto y =
            distributed(b.detach().clone().requires_grad_(), mesh, {kR});
        at::Tensor result;
        {
          const RawAutocast scope;
          result = each.op(x, y);
          // The end of a scope empties libtorch's cache of casts, which the
          // ranks, being threads, share.
          mesh.group(0).barrier();
        }
        mesh.group(0).barrier();
        EXPECT_EQ(result.scalar_type(), expected.scalar_type());
        const auto near = [](const at::Tensor& own, const at::Tensor& other) {
          const double error = (own - other).norm().item<double>();
          EXPECT_LE(error, kStep * other.norm().item<double>());
        };
        near(
            full_tensor(result).detach().to(at::kFloat),
            expected.detach().to(at::kFloat));
        result.to(at::kFloat).square().sum().backward();
        EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
        near(full_tensor(x.grad()), a.grad());
        near(full_tensor(y.grad()), b.grad());
      }
    });
  }
}

TEST(Autocast, AnInputOfManyIsCastAndGatheredOnce) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto leaf = distributed(
        random({4, 6}, 1, at::kFloat).requires_grad_(), mesh, {Shard(0)});
    const auto q = distributed(
        random({8, 6}, 2, at::kFloat).requires_grad_(), mesh, {Shard(0)});
    const auto k = distributed(
        random({8, 6}, 3, at::kFloat).requires_grad_(), mesh, {Shard(0)});
    auto& flight_recorder = mesh.group(0).flight_recorder();
    const auto x = leaf * 2;
    flight_recorder.reset();
    const Autocast scope(at::kCPU);
    const auto of_q = at::linear(x, q);
    const auto y = of_q + at::linear(x, k);
    EXPECT_THAT(
        flight_recorder.counts(),
        ::testing::ElementsAre(::testing::Pair("all_gather", 1)));
    EXPECT_EQ(flight_recorder.total_bytes(), 4 * 6 * 2);
    // Nobody else gets to see that cast.
    const auto own = x.to(at::kBFloat16);
    own.zero_();
    EXPECT_GT(full_tensor(x.to(at::kBFloat16)).abs().sum().item<float>(), 0);
    EXPECT_GT(full_tensor(at::linear(x, q)).abs().sum().item<float>(), 0);
  });
}

TEST(Autocast, CastsOfWeightsEndWithTheScope) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto w =
        distributed(at::ones({4, 6}).requires_grad_(), mesh, {Shard(0)});
    const auto x = distributed(at::ones({2, 6}), mesh, {kR});
    for (const double value : {1.0, 2.0}) {
      const Autocast scope(at::kCPU);
      {
        const Autocast inner(at::kCPU, at::kBFloat16, /*enabled=*/false);
        EXPECT_EQ(at::linear(x, w).scalar_type(), at::kFloat);
      }
      const auto y = at::linear(x, w);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      EXPECT_EQ(full_tensor(y).max().item<float>(), 6 * value);
      const at::NoGradGuard no_grad;
      w.fill_(2.0);
    }
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_EQ(at::linear(x, w).scalar_type(), at::kFloat);
  });
}

TEST(Autocast, AWeightsCastKeepsItsNameAndLayout) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto w = distributed(
        random({6, 4}, 1, at::kFloat).requires_grad_(), mesh, {Shard(1)});
    auto& info = parameter_info(w);
    info.fqn = "down.weight";
    info.linear.output = Placements{Shard(0)};
    const auto x =
        distributed(random({2, 3, 4}, 2, at::kFloat), mesh, {Shard(2)});
    auto& flight_recorder = mesh.group(0).flight_recorder();
    flight_recorder.reset();
    const Autocast scope(at::kCPU);
    // As libtorch's C++ nn::Linear multiplies.
    const auto y = x.matmul(w.t());
    EXPECT_EQ(spec_of(y).placement(0), Shard(0));
    ASSERT_EQ(flight_recorder.entries().size(), 1U);
    EXPECT_EQ(flight_recorder.entries()[0].name, "down.weight");
    EXPECT_EQ(flight_recorder.entries()[0].op, "reduce_scatter");
    EXPECT_EQ(flight_recorder.entries()[0].dtype, at::kBFloat16);
  });
}

} // namespace
} // namespace weft::dtensor
