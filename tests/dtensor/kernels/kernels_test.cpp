// The kernels above autograd against plain libtorch: values and the gradients
// of all inputs, for every way of cutting that the kernels know.

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "dtensor/tensor/gradient.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/dtensor/on_ranks.h"
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;
using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;
// Where an input lies; nullopt: a plain tensor.
using Where = std::vector<std::optional<Placements>>;

Where on_line(std::initializer_list<Placement> placements) {
  Where where;
  for (const auto& placement : placements) {
    where.push_back(Placements{placement});
  }
  return where;
}

// A function of full tensors, what it gives and its gradients.
class Reference {
 public:
  Reference(Function function, Tensors inputs, double tolerance = 1e-10)
      : function_(std::move(function)),
        inputs_(std::move(inputs)),
        tolerance_(tolerance) {
    Tensors leaves;
    for (auto& input : inputs_) {
      leaves.push_back(leaf(input));
    }
    const auto output = function_(leaves);
    output_ = output.detach();
    weights_ = random(output.sizes(), 77).to(output.scalar_type());
    (output * weights_).sum().backward();
    for (const auto& each : leaves) {
      gradients_.push_back(each.grad());
    }
  }

  void compare(const mesh::DeviceMesh& mesh, const Where& where) const {
    std::string text;
    for (const auto& placements : where) {
      text += placements ? to_string(*placements) + " " : "plain ";
    }
    SCOPED_TRACE(text + "on " + mesh.to_string());
    std::optional<ImplicitReplication> plain_is_whole;
    if (std::ranges::any_of(where, [](const auto& w) { return !w; })) {
      plain_is_whole.emplace();
    }
    Tensors leaves;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      auto plain = leaf(inputs_[i]);
      leaves.push_back(where[i] ? distributed(plain, mesh, *where[i]) : plain);
    }
    const auto output = full_tensor(function_(leaves));
    expect_close(output.detach(), output_, tolerance_, "output");
    (output * weights_).sum().backward();
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!gradients_[i].defined()) {
        continue;
      }
      auto gradient = leaves[i].grad();
      ASSERT_TRUE(gradient.defined()) << "input " << i;
      if (where[i]) {
        EXPECT_EQ(spec_of(gradient), spec_of(leaves[i])) << "input " << i;
        gradient = full_tensor(gradient);
      }
      expect_close(
          gradient,
          gradients_[i],
          tolerance_,
          "gradient of input " + std::to_string(i));
    }
  }

 private:
  static at::Tensor leaf(const at::Tensor& input) {
    auto copy = input.clone();
    return copy.is_floating_point() ? copy.requires_grad_() : copy;
  }

  Function function_;
  Tensors inputs_;
  double tolerance_;
  at::Tensor output_;
  at::Tensor weights_;
  Tensors gradients_;
};

void on_lines(
    const std::vector<std::pair<Reference, std::vector<Where>>>& cases,
    std::initializer_list<int> sizes = {1, 2, 3, 4}) {
  for (const int n : sizes) {
    run_ranks(n, [&](RankContext& self) {
      const auto mesh = line(self);
      for (const auto& [reference, wheres] : cases) {
        for (const auto& where : wheres) {
          reference.compare(mesh, where);
        }
      }
    });
  }
}

// ---- linear -----------------------------------------------------------------

at::Tensor linear(const Tensors& inputs) {
  return torch::linear(
      inputs[0], inputs[1], inputs.size() > 2 ? inputs[2] : at::Tensor());
}

TEST(Linear, EqualsPlainForEveryPlacement) {
  const std::vector<Where> with_bias{
      on_line({kR, Shard(0), Shard(0)}),
      on_line({Shard(1), Shard(0), Shard(0)}),
      on_line({kR, Shard(0), kR}),
      on_line({kR, Shard(1), kR}),
      on_line({Shard(2), Shard(1), kR}),
      on_line({Shard(1), Shard(1), kR}),
      on_line({Shard(0), kR, kR}),
      on_line({Shard(1), kR, kR}),
      on_line({Shard(2), kR, kR}),
      on_line({kR, kR, kR}),
      on_line({kR, kR, Shard(0)}),
      {std::nullopt, Placements{Shard(0)}, Placements{Shard(0)}},
      {std::nullopt, Placements{Shard(1)}, Placements{kR}},
      {Placements{Shard(1)}, std::nullopt, std::nullopt}};
  std::vector<Where> without;
  for (auto where : with_bias) {
    where.pop_back();
    without.push_back(where);
  }
  const auto x = random({12, 4, 8}, 1);
  const auto uneven = random({2, 5, 7}, 1);
  on_lines(
      {{{linear, {x, random({12, 8}, 2), random({12}, 3)}}, with_bias},
       {{linear, {x, random({12, 8}, 2)}}, without},
       {{linear, {uneven, random({5, 7}, 2), random({5}, 3)}}, with_bias},
       // Fewer rows than ranks: some have none.
       {{linear, {random({1, 1, 2}, 1), random({2, 2}, 2), random({2}, 3)}},
        with_bias}});
}

TEST(Linear, VectorsAndMatrices) {
  const std::vector<Where> wheres{
      on_line({kR, Shard(0), Shard(0)}), on_line({Shard(0), Shard(1), kR})};
  on_lines(
      {{{linear, {random({7}, 1), random({5, 7}, 2), random({5}, 3)}}, wheres},
       {{linear, {random({3, 7}, 1), random({5, 7}, 2), random({5}, 3)}},
        wheres}},
      {2, 3});
}

TEST(Linear, TwoMeshDims) {
  const Reference reference(
      linear, {random({4, 5, 6}, 1), random({8, 6}, 2), random({8}, 3)});
  run_ranks(4, [&](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    for (const Where& where : std::vector<Where>{
             {Placements{Shard(0), kR},
              Placements{kR, Shard(0)},
              Placements{kR, Shard(0)}},
             {Placements{Shard(0), Shard(1)},
              Placements{kR, Shard(0)},
              Placements{kR, Shard(0)}},
             {Placements{Shard(0), Shard(2)},
              Placements{kR, Shard(1)},
              Placements{kR, kR}},
             {Placements{Shard(0), Shard(0)},
              Placements{kR, kR},
              Placements{kR, kR}},
             {Placements{Shard(1), Shard(1)},
              Placements{Shard(0), Shard(0)},
              Placements{Shard(0), Shard(0)}}}) {
      reference.compare(mesh, where);
    }
  });
}

TEST(Linear, AnInputWhoseFeaturesAreCutInStridesIsMadeWhole) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const auto x = random({4, 8}, 1);
    const auto w = random({5, 8}, 2);
    for (const auto& cut : {StridedShard(1, 2), Shard(1, {3, 5}), Shard(1)}) {
      expect_close(
          full_tensor(at::linear(
              distributed(x, mesh, {cut}),
              distributed(w, mesh, {Replicate()}))),
          at::linear(x, w),
          1e-12,
          cut.to_string());
    }
  });
}

// Of ops that look a rank's rows up by their place.
TEST(StridedShards, AreMovedWhereRowsMustBeAdjacent) {
  using Op = std::function<at::Tensor(const at::Tensor&)>;
  const auto indices = at::tensor({0, 5, 2, 7, 7, 1}, at::kLong);
  const auto like = [](const at::Tensor& values, const at::Tensor& x) {
    return is_dtensor(x) ? distributed(values, spec_of(x).mesh(), {Replicate()})
                         : values;
  };
  const auto bag = [&](int64_t mode) {
    return [&, mode](const at::Tensor& x) {
      return std::get<0>(at::embedding_bag(
          x, like(indices, x), at::tensor({0, 2, 3}, at::kLong), false, mode));
    };
  };
  const std::vector<std::pair<std::string, Op>> ops{
      {"embedding_bag, sum", bag(0)},
      {"embedding_bag, mean", bag(1)},
      {"embedding_bag, max", bag(2)},
      {"embedding",
       [&](const at::Tensor& x) { return at::embedding(x, like(indices, x)); }},
      {"argmax", [](const at::Tensor& x) { return x.argmax(); }},
      {"argmin of a dim", [](const at::Tensor& x) { return x.argmin(0); }},
      {"max of a dim",
       [](const at::Tensor& x) { return std::get<1>(x.max(0)); }},
      {"min of a dim",
       [](const at::Tensor& x) { return std::get<0>(x.min(1)); }},
      {"median", [](const at::Tensor& x) { return x.median(); }},
      {"index_select",
       [&](const at::Tensor& x) {
         return x.index_select(0, like(indices, x));
       }},
      {"roll", [](const at::Tensor& x) { return x.roll(3, 0); }},
      {"tril", [](const at::Tensor& x) { return x.tril(-1); }},
      {"diagonal", [](const at::Tensor& x) { return x.diagonal(); }},
      {"flip", [](const at::Tensor& x) { return x.flip(0); }},
      {"narrow", [](const at::Tensor& x) { return x.narrow(0, 3, 4); }},
      {"cumsum", [](const at::Tensor& x) { return x.cumsum(0); }},
      {"sort", [](const at::Tensor& x) { return std::get<1>(x.sort(0)); }}};
  const auto whole = random({8, 8}, 3);
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    for (const auto& placement : {StridedShard(0, 2), StridedShard(1, 2)}) {
      for (const auto& [name, op] : ops) {
        expect_close(
            full_tensor(op(distributed(whole, mesh, {placement}))),
            op(whole),
            1e-12,
            name + " of " + placement.to_string());
      }
    }
  });
}

TEST(Linear, SecondDerivative) {
  const auto x = random({3, 4}, 1);
  const auto w = random({5, 4}, 2);
  const auto penalty = [](const at::Tensor& a, const at::Tensor& b) {
    const auto y = torch::linear(a, b).pow(3);
    const auto loss = is_dtensor(y) ? full_tensor(y).sum() : y.sum();
    auto grad = torch::autograd::grad({loss}, {a}, {}, true, true)[0];
    grad = is_dtensor(grad) ? full_tensor(grad) : grad;
    grad.pow(2).sum().backward();
  };
  auto plain_x = x.clone().requires_grad_();
  auto plain_w = w.clone().requires_grad_();
  penalty(plain_x, plain_w);
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = line(self);
    for (const auto& [px, pw] : std::vector<std::pair<Placement, Placement>>{
             {kR, Shard(0)}, {Shard(1), Shard(1)}, {Shard(0), kR}}) {
      SCOPED_TRACE(px.to_string() + " " + pw.to_string());
      const auto dx = distributed(x.clone().requires_grad_(), mesh, {px});
      const auto dw = distributed(w.clone().requires_grad_(), mesh, {pw});
      penalty(dx, dw);
      expect_close(full_tensor(dw.grad()), plain_w.grad(), 1e-9, "weight");
      expect_close(full_tensor(dx.grad()), plain_x.grad(), 1e-9, "input");
    }
  });
}

TEST(Linear, WrongSizesAreNamed) {
  const auto mesh = fake_line(0, 2);
  const auto w = distributed(random({4, 3}, 1), mesh, {Shard(0)});
  EXPECT_THAT(
      message_of_thrown<c10::ValueError>([&] {
        torch::linear(distributed(at::ones({2, 5}), mesh, {kR}), w);
      }),
      HasSubstr("input [2, 5] vs weight [4, 3]"));
}

// ---- one gather for q, k and v ----------------------------------------------

TEST(SharedGather, ThreeProjectionsGatherOnceAndReduceOnce) {
  for (const int n : {2, 3, 4}) {
    run_ranks(n, [](RankContext& self) {
      const auto mesh = line(self);
      auto& flight_recorder = mesh.group(0).flight_recorder();
      const auto input = random({12, 2, 8}, 1);
      const auto x =
          distributed(input.clone().requires_grad_(), mesh, {Shard(0)});
      Tensors weights;
      for (uint64_t i = 0; i < 3; ++i) {
        weights.push_back(distributed(
            random({12, 8}, 2 + i).requires_grad_(), mesh, {Shard(0)}));
      }
      const auto h = x * 1.0;
      flight_recorder.reset();
      auto sum = torch::linear(h, weights[0]);
      sum = sum + torch::linear(h, weights[1]);
      sum = sum + torch::linear(h, weights[2]);
      EXPECT_THAT(flight_recorder.counts(), ElementsAre(Pair("all_gather", 1)));
      const auto loss = to_local(sum).sum();
      flight_recorder.reset();
      loss.backward();
      EXPECT_THAT(
          flight_recorder.counts(), ElementsAre(Pair("reduce_scatter", 1)));

      const at::NoGradGuard no_grad;
      const auto again = x * 1.0;
      flight_recorder.reset();
      for (const auto& weight : weights) {
        torch::linear(again, weight);
      }
      EXPECT_THAT(flight_recorder.counts(), ElementsAre(Pair("all_gather", 1)));
      // A new version of the data is gathered again.
      again.add_(1);
      const auto y = torch::linear(again, weights[0]);
      EXPECT_THAT(flight_recorder.counts(), ElementsAre(Pair("all_gather", 2)));
      expect_close(
          full_tensor(y),
          torch::linear(input + 1, random({12, 8}, 2)),
          1e-10,
          "after the write");
    });
  }
}

// C++ nn::Linear multiplies by weight.t() and adds the bias.
TEST(SharedGather, UnmodifiedLinearModulesShareItToo) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto& flight_recorder = mesh.group(0).flight_recorder();
    for (const bool bias : {false, true}) {
      for (const auto& sizes :
           std::vector<std::vector<int64_t>>{{6, 8}, {2, 6, 8}}) {
        std::vector<torch::nn::Linear> modules;
        {
          const DeferredInit scope;
          for (int i = 0; i < 3; ++i) {
            modules.emplace_back(torch::nn::LinearOptions(8, 6).bias(bias));
          }
        }
        for (auto& module : modules) {
          for (const auto& parameter : module->parameters()) {
            set_placements(parameter, mesh, {Shard(0)});
          }
          materialize(*module, 1);
        }
        const auto input = random(sizes, 1, at::kFloat);
        const auto dim = static_cast<int64_t>(sizes.size()) - 2;
        const auto x =
            distributed(input.clone().requires_grad_(), mesh, {Shard(dim)});
        flight_recorder.reset();
        auto sum = modules[0](x);
        EXPECT_EQ(spec_of(sum).placements(), Placements{Shard(dim + 1)});
        sum = sum + modules[1](x);
        sum = sum + modules[2](x);
        EXPECT_THAT(
            flight_recorder.counts(), ElementsAre(Pair("all_gather", 1)));
        const auto loss = to_local(sum).sum();
        flight_recorder.reset();
        loss.backward();
        EXPECT_THAT(
            flight_recorder.counts(),
            ElementsAre(Pair(::testing::StartsWith("reduce_scatter"), 1)));
        const auto weight = full_tensor(modules[0]->weight).detach();
        EXPECT_TRUE(weight.equal(full_tensor(modules[1]->weight).detach()));
        expect_close(
            full_tensor(x.grad()),
            weight.sum(0).mul(3).expand(sizes),
            1e-5,
            "gradient");
        EXPECT_EQ(
            spec_of(modules[2]->weight.grad()), spec_of(modules[2]->weight));
      }
    }
  });
}

TEST(SharedGather, NothingIsKeptAcrossGradModes) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x =
        distributed(random({4, 3}, 1).requires_grad_(), mesh, {Shard(0)});
    const auto w =
        distributed(random({2, 3}, 2).requires_grad_(), mesh, {Shard(0)});
    {
      const at::NoGradGuard no_grad;
      EXPECT_FALSE(torch::linear(x, w).requires_grad());
    }
    const auto y = torch::linear(x, w);
    EXPECT_TRUE(y.requires_grad());
    to_local(y).sum().backward();
    EXPECT_TRUE(x.grad().defined());
    const c10::InferenceMode inference;
    EXPECT_FALSE(torch::linear(x, w).requires_grad());
    const auto z = x * 2.0;
    expect_close(
        full_tensor(torch::linear(z, w)),
        torch::linear(random({4, 3}, 1) * 2, random({2, 3}, 2)),
        1e-10,
        "inference");
  });
}

TEST(SavedTensors, AWriteAfterARegionSavedThemIsNoticed) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto x = distributed(random({4, 3}, 1).requires_grad_(), mesh, {kR});
    const auto w =
        distributed(random({2, 3}, 2).requires_grad_(), mesh, {Shard(0)});
    const auto h = x * 1.0;
    const auto y = torch::linear(h, w);
    h.add_(1);
    EXPECT_THAT(
        message_of_thrown<c10::Error>([&] { to_local(y).sum().backward(); }),
        HasSubstr("modified by an inplace operation"));
  });
}

// ---- embedding --------------------------------------------------------------

TEST(Embedding, EqualsPlainForEveryPlacement) {
  const auto indices = at::tensor({0, 3, 9, 3, 8, 1}, at::kLong).view({2, 3});
  const auto few = at::tensor({1, 0, 1, 0}, at::kLong).view({4, 1});
  const auto lookup = [](int64_t padding) {
    return [padding](const Tensors& inputs) {
      return torch::embedding(inputs[0], inputs[1], padding);
    };
  };
  const std::vector<Where> wheres{
      on_line({Shard(0), kR}),
      on_line({Shard(0), Shard(0)}),
      on_line({Shard(1), kR}),
      on_line({Shard(1), Shard(1)}),
      on_line({kR, Shard(0)}),
      on_line({kR, Shard(1)}),
      on_line({kR, kR}),
      {Placements{Shard(0)}, std::nullopt},
      {std::nullopt, Placements{Shard(0)}}};
  on_lines(
      {{{lookup(-1), {random({10, 6}, 1), indices}}, wheres},
       {{lookup(3), {random({10, 5}, 1), indices}}, wheres},
       {{lookup(0), {random({2, 5}, 1), few}}, wheres}});
}

TEST(Embedding, AnIndexOutsideTheVocabularyIsAnErrorEverywhere) {
  run_ranks(3, [](RankContext& self) {
    const auto mesh = line(self);
    const auto weight = distributed(random({10, 4}, 1), mesh, {Shard(0)});
    for (const int64_t bad : {10, -1}) {
      const auto indices =
          distributed(at::tensor({int64_t{0}, bad}, at::kLong), mesh, {kR});
      EXPECT_THAT(
          message_of_thrown<c10::IndexError>(
              [&] { torch::embedding(weight, indices); }),
          HasSubstr("expected 0 to 9, the rows of the weight"));
    }
  });
}

// ---- norms ------------------------------------------------------------------

TEST(Norm, EqualsPlainForEveryPlacement) {
  const Function rms = [](const Tensors& inputs) {
    return at::rms_norm(inputs[0], {inputs[0].size(-1)}, inputs[1], 1e-5);
  };
  const Function bare_rms = [](const Tensors& inputs) {
    return at::rms_norm(inputs[0], {inputs[0].size(-1)}, {}, {});
  };
  const Function layer = [](const Tensors& inputs) {
    return torch::layer_norm(
        inputs[0], {inputs[0].size(-1)}, inputs[1], inputs[2]);
  };
  std::vector<Where> three;
  for (const auto& placement : {kR, Shard(0), Shard(1), Shard(2)}) {
    three.push_back(on_line({placement, kR, kR}));
  }
  three.push_back(on_line({Shard(1), Shard(0), kR}));
  three.push_back({std::nullopt, Placements{kR}, Placements{kR}});
  std::vector<Where> two;
  std::vector<Where> one;
  for (auto where : three) {
    where.pop_back();
    two.push_back(where);
    if (where[0]) {
      one.push_back({where[0]});
    }
  }
  std::vector<std::pair<Reference, std::vector<Where>>> cases;
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{2, 12, 6}, {3, 5, 4}, {1, 1, 3}}) {
    const auto x = random(sizes, 1);
    const auto w = random({sizes.back()}, 2);
    const auto b = random({sizes.back()}, 3);
    cases.push_back({Reference(rms, {x, w}), two});
    cases.push_back({Reference(bare_rms, {x}), one});
    cases.push_back({Reference(layer, {x, w, b}), three});
  }
  on_lines(cases);
}

TEST(Norm, PendingGradientsAreReducedTogetherAtTheEnd) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto& flight_recorder = mesh.group(0).flight_recorder();
    const auto x = distributed(random({4, 6}, 1), mesh, {Shard(0)});
    Tensors weights;
    for (uint64_t i = 0; i < 4; ++i) {
      weights.push_back(
          distributed(random({6}, 2 + i).requires_grad_(), mesh, {kR}));
    }
    const auto forward = [&] {
      auto h = x;
      for (const auto& weight : weights) {
        h = at::rms_norm(h, {6}, weight, 1e-5) + x;
      }
      return to_local(h).sum();
    };
    forward().backward();
    const auto once = full_tensor(weights[0].grad()).clone();
    flight_recorder.reset();
    const auto loss = forward();
    loss.backward();
    EXPECT_THAT(
        flight_recorder.counts(), ElementsAre(Pair("all_reduce_coalesced", 1)));
    for (const auto& weight : weights) {
      EXPECT_TRUE(spec_of(weight.grad()).is_replicated());
    }
    expect_close(
        full_tensor(weights[0].grad()), once * 2, 1e-10, "two backwards");
  });
}

// ---- attention --------------------------------------------------------------

TEST(Attention, EqualsPlainForEveryPlacement) {
  const auto attend = [](bool causal, bool gqa) -> Function {
    return [=](const Tensors& inputs) {
      return at::scaled_dot_product_attention(
          inputs[0],
          inputs[1],
          inputs[2],
          inputs.size() > 3 ? std::optional(inputs[3]) : std::nullopt,
          0.0,
          causal,
          std::nullopt,
          gqa);
    };
  };
  std::vector<Where> three;
  for (const auto& placement : {kR, Shard(0), Shard(1), Shard(2), Shard(3)}) {
    three.push_back(on_line({placement, placement, placement}));
  }
  three.push_back(on_line({Shard(1), kR, Shard(0)}));
  std::vector<Where> masked;
  for (auto where : three) {
    where.push_back(Placements{kR});
    masked.push_back(where);
  }
  masked.push_back(
      {Placements{Shard(1)},
       Placements{Shard(1)},
       Placements{Shard(1)},
       std::nullopt});
  const auto t = [](std::vector<int64_t> sizes, uint64_t seed) {
    return random(sizes, seed);
  };
  const auto q = t({2, 4, 5, 8}, 1);
  std::vector<std::pair<Reference, std::vector<Where>>> cases;
  cases.push_back(
      {{attend(true, false), {q, t({2, 4, 5, 8}, 2), t({2, 4, 5, 8}, 3)}},
       three});
  cases.push_back(
      {{attend(false, false), {q, t({2, 4, 3, 8}, 2), t({2, 4, 3, 8}, 3)}},
       three});
  cases.push_back(
      {{attend(true, true), {q, t({2, 2, 5, 8}, 2), t({2, 2, 5, 8}, 3)}},
       three});
  // Heads that do not divide, and fewer heads than ranks.
  cases.push_back(
      {{attend(true, false),
        {t({1, 3, 4, 8}, 1), t({1, 3, 4, 8}, 2), t({1, 3, 4, 8}, 3)}},
       three});
  cases.push_back(
      {{attend(true, true),
        {t({3, 6, 4, 8}, 1), t({3, 3, 4, 8}, 2), t({3, 3, 4, 8}, 3)}},
       three});
  cases.push_back(
      {{attend(false, false),
        {q, t({2, 4, 5, 8}, 2), t({2, 4, 5, 8}, 3), t({5, 5}, 4)}},
       masked});
  cases.push_back(
      {{attend(false, false),
        {q, t({2, 4, 5, 8}, 2), t({2, 4, 5, 8}, 3), t({1, 4, 5, 5}, 4)}},
       masked});
  on_lines(cases);
}

// ---- cross entropy ----------------------------------------------------------

struct LossOptions {
  int64_t reduction = at::Reduction::Mean;
  int64_t ignore = -100;
  double smoothing = 0.0;
  bool weights = false;
};

Function cross_entropy(const LossOptions& options) {
  return [options](const Tensors& inputs) {
    return at::cross_entropy_loss(
        inputs[0],
        inputs[1],
        options.weights ? std::optional(inputs[2].detach()) : std::nullopt,
        options.reduction,
        options.ignore,
        options.smoothing);
  };
}

TEST(CrossEntropy, EqualsPlainForEveryPlacement) {
  std::vector<std::pair<Reference, std::vector<Where>>> cases;
  const std::vector<Where> wheres{
      on_line({kR, kR, kR}),
      on_line({Shard(1), kR, kR}),
      on_line({Shard(0), Shard(0), kR}),
      on_line({Shard(0), kR, Shard(0)}),
      on_line({Shard(1), Shard(0), kR}),
      {Placements{Shard(1)}, std::nullopt, Placements{kR}}};
  for (const auto& [rows, classes] :
       std::vector<std::pair<int64_t, int64_t>>{{12, 24}, {5, 7}, {3, 2}}) {
    auto target =
        random({rows}, 3).mul(100).abs().to(at::kLong).remainder(classes);
    const auto logits = random({rows, classes}, 1) * 3;
    const auto weights = random({classes}, 4).abs();
    for (const auto reduction :
         {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
      for (const auto& options : std::vector<LossOptions>{
               {reduction},
               {reduction, -100, 0.1},
               {reduction, 1},
               {reduction, 1, 0.1, true},
               {reduction, -100, 0.0, true}}) {
        cases.push_back(
            {Reference(cross_entropy(options), {logits, target, weights}),
             wheres});
      }
    }
    auto ignored = target.clone();
    ignored[0] = -100;
    cases.push_back(
        {Reference(cross_entropy({}), {logits, ignored, weights}), wheres});
  }
  on_lines(cases);
}

TEST(CrossEntropy, ClassesAreNeverGathered) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = line(self);
    auto& flight_recorder = mesh.group(0).flight_recorder();
    const auto logits =
        distributed(random({6, 64}, 1).requires_grad_(), mesh, {Shard(1)});
    const auto target = distributed(at::arange(6, at::kLong), mesh, {kR});
    flight_recorder.reset();
    const auto loss = at::cross_entropy_loss(logits, target);
    loss.backward();
    EXPECT_THAT(flight_recorder.counts(), ElementsAre(Pair("all_gather", 1)));
    // Three numbers a row from each of four ranks.
    EXPECT_EQ(flight_recorder.total_bytes(), 4 * 3 * 6 * 8);
  });
}

TEST(CrossEntropy, BatchAndClassesCutOverTwoMeshDims) {
  const auto target = at::tensor({0, 4, 6, -100, 2}, at::kLong);
  for (const auto reduction :
       {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    const Reference reference(
        cross_entropy({reduction}), {random({5, 7}, 1), target});
    run_ranks(4, [&](RankContext& self) {
      const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
      reference.compare(
          mesh, {Placements{Shard(0), Shard(1)}, Placements{Shard(0), kR}});
      reference.compare(
          mesh, {Placements{Shard(0), Shard(0)}, Placements{kR, kR}});
      reference.compare(
          mesh, {Placements{Shard(1), Shard(1)}, Placements{kR, kR}});
    });
  }
}

TEST(CrossEntropy, ATargetThatIsNoClassIsAnErrorEverywhere) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto logits = distributed(random({2, 7}, 1), mesh, {Shard(1)});
    for (const int64_t bad : {7, -1}) {
      const auto target =
          distributed(at::tensor({int64_t{0}, bad}, at::kLong), mesh, {kR});
      EXPECT_THAT(
          message_of_thrown<c10::IndexError>(
              [&] { at::cross_entropy_loss(logits, target); }),
          HasSubstr("target < number of classes"));
    }
  });
}

TEST(CrossEntropy, HalfPrecisionIsSummedInFloatWhereverItLies) {
  const auto whole = random({4, 8}, 1, at::kBFloat16);
  const auto expected =
      at::cross_entropy_loss(whole.to(at::kFloat), at::arange(4, at::kLong));
  run_ranks(2, [&](RankContext& self) {
    const auto mesh = line(self);
    const auto target = distributed(at::arange(4, at::kLong), mesh, {kR});
    for (const auto& placement : {kR, Shard(0), Shard(1)}) {
      const auto logits =
          distributed(whole.clone().requires_grad_(), mesh, {placement});
      const auto loss = at::cross_entropy_loss(logits, target);
      expect_close(full_tensor(loss).detach(), expected, 1e-6, "loss");
      loss.backward();
      EXPECT_EQ(logits.grad().scalar_type(), at::kBFloat16);
    }
  });
}

} // namespace
} // namespace weft::dtensor
