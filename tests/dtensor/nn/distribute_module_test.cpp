// Modules of libtorch and of others, put on a mesh.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/nn/distribute_module.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/dtensor/on_ranks.h"
#include "tests/dtensor/parts.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::dtensor {
namespace {

using dtensor::test::distributed;
using dtensor::test::expect_close;
using dtensor::test::kR;
using dtensor::test::line;
using dtensor::test::random;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::test::message_of_thrown;
using weft::test::RankContext;
using weft::test::run_ranks;

struct SmallNetImpl : torch::nn::Cloneable<SmallNetImpl> {
  torch::nn::Linear first{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear second{nullptr};

  SmallNetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(norm(first(x)).relu());
  }
};

void fill(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  uint64_t seed = 20;
  for (auto& parameter : module.parameters()) {
    parameter.copy_(random(parameter.sizes(), ++seed));
  }
}

// Linears' output features are cut; everything else is whole.
void cut_first(
    const std::string& name,
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh) {
  if (module.as<torch::nn::LinearImpl>() && name == "first") {
    distribute_parameter(module, "weight", mesh, {Shard(0)}, name);
    distribute_parameter(module, "bias", mesh, {Shard(0)}, name);
  }
}

void expect_same_training(
    const std::shared_ptr<SmallNetImpl>& net,
    const std::function<at::Tensor(const at::Tensor&)>& forward) {
  auto alone = std::make_shared<SmallNetImpl>();
  alone->to(at::kDouble);
  fill(*alone);
  const auto x = random({4, 6}, 1);
  const auto loss_alone = alone->forward(x).square().sum();
  loss_alone.backward();
  const auto loss = forward(x).square().sum();
  loss.backward();
  expect_close(
      is_dtensor(loss) ? full_tensor(loss) : loss,
      loss_alone.detach(),
      1e-9,
      "loss");
  const auto expected = alone->named_parameters();
  for (const auto& item : net->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_EQ(spec_of(item.value().grad()), spec_of(item.value()));
    expect_close(
        full_tensor(item.value().grad()),
        expected[item.key()].grad(),
        1e-9,
        item.key());
  }
}

TEST(DistributeModule, PlacesAModuleThatWasBuiltPlain) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    auto net = std::make_shared<SmallNetImpl>();
    net->to(at::kDouble);
    fill(*net);
    distribute_module(
        *net,
        mesh,
        cut_first,
        [](torch::nn::Module&, std::vector<at::Tensor> inputs, const auto& m) {
          inputs[0] = distribute_tensor(inputs[0], m, {Replicate()});
          return inputs;
        },
        [](torch::nn::Module&, const at::Tensor& output, const auto&) {
          return full_tensor(output);
        });
    EXPECT_EQ(spec_of(net->first->weight).placements(), Placements{Shard(0)});
    EXPECT_EQ(spec_of(net->norm->weight).placements(), Placements{kR});
    expect_same_training(
        net, [&](const at::Tensor& x) { return dtensor::call(net, x); });
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          distribute_module(
              *net, mesh, {}, {}, [](auto&, const at::Tensor& y, const auto&) {
                return y;
              });
        }),
        HasSubstr("[distribute_module]"));
  });
}

TEST(DistributeModule, PlacesADeferredModule) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    std::shared_ptr<SmallNetImpl> net;
    {
      const DeferredInit scope;
      net = std::make_shared<SmallNetImpl>();
      net->to(at::kDouble);
    }
    distribute_module(*net, mesh, cut_first);
    EXPECT_TRUE(is_deferred(net->first->weight));
    materialize(*net, 1);
    EXPECT_EQ(spec_of(net->first->weight).placements(), Placements{Shard(0)});
    EXPECT_EQ(spec_of(net->second->bias).placements(), Placements{kR});
    const at::NoGradGuard no_grad;
    uint64_t seed = 20;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(distributed(
          random(parameter.sizes(), ++seed),
          mesh,
          spec_of(parameter).placements()));
    }
    const at::AutoGradMode grad(true);
    expect_same_training(net, [&](const at::Tensor& x) {
      return net->forward(distributed(x, mesh, {kR}));
    });
  });
}

template <class Holder>
void expect_all_placed(Holder module, const mesh::DeviceMesh& mesh) {
  SCOPED_TRACE(module->name());
  const auto before = module->named_parameters();
  const auto buffers = module->named_buffers();
  distribute_module(*module, mesh);
  for (const auto& item : module->named_parameters()) {
    EXPECT_TRUE(is_dtensor(item.value())) << item.key();
    EXPECT_TRUE(item.value().requires_grad()) << item.key();
    EXPECT_EQ(item.value().sizes(), before[item.key()].sizes());
  }
  for (const auto& item : module->named_buffers()) {
    EXPECT_TRUE(is_dtensor(item.value())) << item.key();
    EXPECT_EQ(item.value().sizes(), buffers[item.key()].sizes());
  }
}

TEST(DistributeModule, KnowsLibtorchsModules) {
  using namespace torch::nn;
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    expect_all_placed(Linear(2, 3), mesh);
    expect_all_placed(Bilinear(2, 3, 4), mesh);
    expect_all_placed(Embedding(4, 2), mesh);
    expect_all_placed(EmbeddingBag(4, 2), mesh);
    expect_all_placed(GroupNorm(GroupNormOptions(2, 4)), mesh);
    expect_all_placed(
        InstanceNorm2d(
            InstanceNorm2dOptions(4).affine(true).track_running_stats(true)),
        mesh);
    expect_all_placed(Conv1d(2, 3, 1), mesh);
    expect_all_placed(ConvTranspose2d(2, 3, 1), mesh);
    expect_all_placed(PReLU(), mesh);
    expect_all_placed(MultiheadAttention(4, 2), mesh);
    expect_all_placed(
        TransformerEncoderLayer(TransformerEncoderLayerOptions(4, 2)), mesh);
    expect_all_placed(LSTM(2, 3), mesh);
    expect_all_placed(GRUCell(2, 3), mesh);
    BatchNorm2d norm(4);
    expect_all_placed(norm, mesh);
    EXPECT_TRUE(is_dtensor(norm->running_mean));
    EXPECT_TRUE(is_dtensor(norm->weight));
  });
}

struct OwnScaleImpl : torch::nn::Module {
  at::Tensor scale = register_parameter("scale", at::ones({2}));
};

TEST(DistributeModule, RefusesPlainParametersOfOtherTypes) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = line(self);
    const auto module = std::make_shared<OwnScaleImpl>();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { distribute_module(*module, mesh); }),
        AllOf(
            HasSubstr("\"scale\""), HasSubstr("weft::dtensor::DeferredInit")));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { distribute_parameter(*module, "scael", mesh, {kR}); }),
        HasSubstr("no parameter or buffer \"scael\""));
  });
}

} // namespace
} // namespace weft::dtensor
