// Adapters of low rank beside weights that are split in every way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "dtensor/kernels/linear_adapter.h"
#include "dtensor/random/random_state.h"
#include "dtensor/tensor/gradient.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/communicator/flight_recorder.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/models.h"
#include "tp/lora.h"

namespace weft::tp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kIn = 6;
constexpr int64_t kInside = 7;
constexpr int64_t kRank = 3;

struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl() {
    up = register_module("up", torch::nn::Linear(kIn, kInside));
    down = register_module("down", torch::nn::Linear(kInside, kIn));
    gate = register_module("gate", torch::nn::Linear(kIn, kIn));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto gated = gate(x).sigmoid();
    return gated * down(torch::tanh(up(x)));
  }
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
  torch::nn::Linear gate{nullptr};
};

ParallelizePlan plan_of(bool sequence) {
  const auto stream = sequence ? Shard(1) : Replicate();
  return {
      {"up", ColwiseParallel({.input_layouts = stream})},
      {"down", RowwiseParallel({.output_layouts = stream})}};
}

// Deferred, placed, adapted, with values in double; those of lora_B are none of
// zeros, or its partners would have no gradients.
std::shared_ptr<AdaptedImpl> adapted(
    const mesh::DeviceMesh& mesh,
    bool sequence,
    const LoraOptions& options) {
  std::shared_ptr<AdaptedImpl> module;
  {
    const dtensor::DeferredInit scope;
    module = std::make_shared<AdaptedImpl>();
  }
  parallelize_module(*module, mesh, plan_of(sequence));
  EXPECT_THAT(
      add_lora(*module, {"*"}, options), ElementsAre("up", "down", "gate"));
  dtensor::materialize(*module, /*seed=*/5);
  module->to(at::kDouble);
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (auto& item : module->named_parameters()) {
    if (item.key().ends_with("lora_B.weight")) {
      EXPECT_TRUE(
          at::equal(whole(item.value()), at::zeros_like(whole(item.value()))));
      item.value().copy_(dtensor::distribute_tensor(
          wave(item.value().sizes(), phase += 1),
          mesh,
          dtensor::spec_of(item.value()).placements()));
    }
    dtensor::match_gradient_placement(item.value());
  }
  return module;
}

// The same from plain tensors, spelled out.
struct Reference {
  std::map<std::string, at::Tensor> values;

  explicit Reference(const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      auto value = whole(item.value().detach()).clone();
      values[item.key()] =
          value.requires_grad_(item.key().find("lora_") != std::string::npos);
    }
  }
  at::Tensor
  linear(const std::string& name, const at::Tensor& x, double scale) {
    const auto& v = values;
    return at::linear(x, v.at(name + ".weight"), v.at(name + ".bias")) +
           scale * at::linear(
                       at::linear(x, v.at(name + ".lora_A.weight")),
                       v.at(name + ".lora_B.weight"));
  }
  at::Tensor forward(const at::Tensor& x, double scale) {
    const auto inside = torch::tanh(linear("up", x, scale));
    return linear("gate", x, scale).sigmoid() * linear("down", inside, scale);
  }
};

class Lora : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(Lora, EqualsOneRank) {
  const auto [ranks, sequence] = GetParam();
  test::run_ranks(ranks, [&, sequence](test::RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"tp"});
    const auto module = adapted(mesh, sequence, {.rank = kRank, .alpha = 6.0});
    Reference reference(*module);
    const auto stream = sequence ? Shard(1) : Replicate();
    const auto input = wave({2, 5, kIn});
    auto x = dtensor::distribute_tensor(input, mesh, {stream});
    x.requires_grad_();
    const auto plain = input.clone().requires_grad_();

    const auto y = module->forward(x);
    const auto expected = reference.forward(plain, /*scale=*/2.0);
    expect_close(y, expected, "output");
    y.square().sum().backward();
    expected.square().sum().backward();
    expect_close(x.grad(), plain.grad(), "input");
    for (const auto& item : module->named_parameters()) {
      const auto& own = item.value();
      const auto& alone = reference.values.at(item.key());
      ASSERT_EQ(own.requires_grad(), alone.requires_grad()) << item.key();
      if (alone.requires_grad()) {
        EXPECT_EQ(dtensor::spec_of(own.grad()), dtensor::spec_of(own))
            << item.key();
        expect_close(own.grad(), alone.grad(), item.key());
      } else {
        EXPECT_FALSE(own.grad().defined()) << item.key();
      }
    }

    merge_lora(*module);
    EXPECT_EQ(module->parameters().size(), 6U);
    EXPECT_TRUE(module->up->weight.requires_grad());
    expect_close(module->forward(x), expected.detach(), "merged");
  });
}

// Small weights follow the large ones: forward moves no more.
TEST_P(Lora, MovesNothingMoreForward) {
  const auto [ranks, sequence] = GetParam();
  test::run_ranks(ranks, [&, sequence](test::RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"tp"});
    auto& flight_recorder = mesh.group("tp").flight_recorder();
    const auto stream = sequence ? Shard(1) : Replicate();
    const auto calls = [&](AdaptedImpl& module) {
      // One each: the one that asks for the same tensor shares its move.
      const auto x =
          dtensor::distribute_tensor(wave({2, 6, kIn}), mesh, {stream});
      flight_recorder.reset();
      module.forward(x);
      return flight_recorder.entries().size();
    };
    const auto plain = make_parallel<AdaptedImpl>(mesh, plan_of(sequence));
    const auto module = adapted(mesh, sequence, {.rank = kRank});
    EXPECT_EQ(calls(*module), calls(*plain));
  });
}

TEST_P(Lora, DropsTheSameHoweverItLies) {
  const auto [ranks, sequence] = GetParam();
  const auto output = [&](int size, bool cut) {
    at::Tensor result;
    test::run_ranks(size, [&](test::RankContext& self) {
      const auto mesh = self.mesh({self.world_size}, {"tp"});
      const auto module = adapted(mesh, cut, {.rank = kRank, .dropout = 0.5});
      const auto x = dtensor::distribute_tensor(
          wave({2, 5, kIn}), mesh, {cut ? Shard(1) : Replicate()});
      dtensor::manual_seed(mesh, 3);
      const auto dropped = whole(module->forward(x)).detach();
      module->eval();
      EXPECT_FALSE(at::allclose(whole(module->forward(x)), dropped));
      if (self.rank == 0) {
        result = dropped;
      }
    });
    return result;
  };
  EXPECT_TRUE(
      at::allclose(output(ranks, sequence), output(1, false), 1e-10, 1e-12));
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    Lora,
    ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Bool()));

TEST(LoraErrors, NameTheModuleAndChangeNothing) {
  test::run_ranks(1, [](test::RankContext& self) {
    const auto mesh = self.mesh({1}, {"tp"});
    const auto plain = std::make_shared<AdaptedImpl>();
    EXPECT_THAT(
        [&] { add_lora(*plain, {"up"}); },
        ThrowsMessage<c10::ValueError>(AllOf(
            HasSubstr("\"up\" is not on a mesh"),
            HasSubstr("parallelize_module()"))));
    const auto module = make_parallel<AdaptedImpl>(mesh, plan_of(false));
    const auto refused = [&](std::vector<std::string> patterns,
                             const LoraOptions& options,
                             const std::string& text) {
      EXPECT_THAT(
          [&] { add_lora(*module, patterns, options); },
          ThrowsMessage<c10::ValueError>(HasSubstr(text)));
      EXPECT_TRUE(module->up->weight.requires_grad());
      EXPECT_EQ(module->parameters().size(), 6U);
    };
    refused({"up", "sideways"}, {}, "no module matches \"sideways\"");
    refused({"dwn"}, {}, "\"dwn\". Did you mean \"down\"?");
    refused({""}, {}, "not a Linear");
    refused({"up"}, {.rank = 0}, "rank >= 1");
    refused({"up"}, {.dropout = 1.0}, "dropout < 1");
    add_lora(*module, {"up"});
    EXPECT_THAT(
        [&] { add_lora(*module, {"up"}); },
        ThrowsMessage<c10::ValueError>(HasSubstr("already has an adapter")));
  });
}

} // namespace
} // namespace weft::tp
