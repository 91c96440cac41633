// Which modules a plan reaches, what it refuses, and what it makes of modules
// that were built plain.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/parameter_info.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/tp/models.h"
#include "tp/module_pattern.h"

namespace weft::tp {
namespace {

using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Matches, ComponentByComponent) {
  struct Case {
    const char* pattern;
    const char* path;
    bool expected;
  };
  for (const auto& [pattern, path, expected] : {
           Case{"", "", true},
           Case{"", "a", false},
           Case{"a", "", false},
           Case{"a", "a", true},
           Case{"a", "ab", false},
           Case{"a.b", "a.b", true},
           Case{"a.b", "a", false},
           Case{"a", "a.b", false},
           Case{"*", "layers", true},
           Case{"*", "layers.0", false},
           Case{"*", "", false},
           Case{"layers.*.q_proj", "layers.11.q_proj", true},
           Case{"layers.*.q_proj", "layers.q_proj", false},
           Case{"layers.*.q_proj", "layers.1.attn.q_proj", false},
           Case{"layers.*.*_proj", "layers.1.q_proj", true},
           Case{"layers.*.*_proj", "layers.1.q_proj_", false},
           Case{"*a*b*", "xaxbx", true},
           Case{"*a*b*", "xbxax", false},
           Case{"layer?", "layer1", true},
           Case{"layer?", "layer", false},
           Case{"layer?", "layer12", false},
           Case{"layers?0", "layers.0", false},
           Case{"**", "", true},
           Case{"**", "a.b.c", true},
           Case{"**.norm", "norm", true},
           Case{"**.norm", "a.b.norm", true},
           Case{"**.norm", "a.norms", false},
           Case{"a.**", "a", true},
           Case{"a.**", "a.b.c", true},
           Case{"a.**", "b.a", false},
           Case{"a.**.c", "a.c", true},
           Case{"a.**.c", "a.x.y.c", true},
           Case{"a.**.c", "a.x.y.d", false},
       }) {
    EXPECT_EQ(matches(pattern, path), expected)
        << "\"" << pattern << "\" on \"" << path << "\"";
  }
}

/// A module that is not libtorch's own.
struct Scale : torch::nn::Module {
  Scale() : scale(register_parameter("scale", at::ones({4}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * scale; }
  at::Tensor scale;
};

struct Model : torch::nn::Module {
  Model()
      : embed(register_module("embed", torch::nn::Embedding(7, 6))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))),
        linear(register_module("linear", torch::nn::Linear(6, 5))),
        rest(register_module("rest", torch::nn::Linear(5, 3))) {}

  at::Tensor forward(const at::Tensor& tokens) {
    return rest(at::tanh(linear(norm(embed(tokens)))));
  }

  torch::nn::Embedding embed;
  torch::nn::LayerNorm norm;
  torch::nn::Linear linear, rest;
};

std::shared_ptr<Model> deferred_model() {
  const dtensor::DeferredInit scope;
  return std::make_shared<Model>();
}

TEST(ParallelizeModule, APatternWithoutAModuleNamesThoseThatThereAre) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    auto model = deferred_model();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          parallelize_module(*model, mesh, {{"linaer", ColwiseParallel()}});
        }),
        AllOf(
            HasSubstr("[parallelize_module] no module matches \"linaer\""),
            HasSubstr("\"embed\", \"norm\", \"linear\", \"rest\""),
            HasSubstr("mesh tp=2")));
  });
}

TEST(ParallelizeModule, AStyleThatDoesNotFitIsRefused) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    auto model = deferred_model();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          parallelize_module(*model, mesh, {{"norm", ColwiseParallel()}});
        }),
        AllOf(
            HasSubstr("[ColwiseParallel] module \"norm\" is a "),
            HasSubstr("LayerNorm"),
            HasSubstr("not a Linear or an Embedding")));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          parallelize_module(*model, mesh, {{"", RowwiseParallel()}});
        }),
        HasSubstr("[RowwiseParallel] module \"\" is a "));
  });
}

TEST(ParallelizeModule, WhatNoStylePlacesIsReplicated) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    auto model = deferred_model();
    parallelize_module(
        *model,
        mesh,
        {{"embed", RowwiseParallel()}, {"linear", ColwiseParallel()}});
    const auto placements_of = [](const at::Tensor& tensor) {
      return dtensor::spec_of(tensor).placements();
    };
    EXPECT_THAT(placements_of(model->embed->weight), ElementsAre(Shard(0)));
    EXPECT_THAT(placements_of(model->linear->weight), ElementsAre(Shard(0)));
    EXPECT_THAT(placements_of(model->linear->bias), ElementsAre(Shard(0)));
    for (const auto& tensor :
         {model->norm->weight,
          model->norm->bias,
          model->rest->weight,
          model->rest->bias}) {
      EXPECT_THAT(placements_of(tensor), ElementsAre(Replicate()));
    }
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(dtensor::parameter_name(item.value()), item.key());
    }
  });
}

// The values are those of the mesh's rank 0, though every rank made its own.
TEST(ParallelizeModule, PlainModulesOfLibtorchAreReplaced) {
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](RankContext& self) {
      const auto mesh = self.mesh({ranks}, {"tp"});
      const auto filled = [](double phase) {
        auto model = std::make_shared<Model>();
        model->to(at::kDouble);
        const at::NoGradGuard no_grad;
        for (auto& parameter : model->parameters()) {
          parameter.copy_(wave(parameter.sizes(), phase += 1));
        }
        return model;
      };
      auto model = filled(static_cast<double>(self.rank) * 0.3);
      model->rest->bias.set_requires_grad(false);
      parallelize_module(
          *model,
          mesh,
          {{"embed", RowwiseParallel()}, {"linear", ColwiseParallel()}});
      auto alone = filled(0);
      alone->rest->bias.set_requires_grad(false);

      EXPECT_TRUE(model->embed->weight.is_same(
          model->named_parameters()["embed.weight"]));
      EXPECT_TRUE(
          model->norm->bias.is_same(model->named_parameters()["norm.bias"]));
      EXPECT_FALSE(model->rest->bias.requires_grad());
      EXPECT_EQ(
          dtensor::to_local(model->embed->weight).size(0),
          dtensor::shard_range(7, ranks, self.rank).length);
      const auto tokens = at::arange(7).view({1, 7});
      const auto y = model->forward(tokens);
      const auto expected = alone->forward(tokens);
      expect_close(y, expected, "output");
      loss_of(y).backward();
      loss_of(expected).backward();
      for (const auto& item : model->named_parameters()) {
        if (item.value().requires_grad()) {
          expect_close(
              item.value().grad(),
              alone->named_parameters()[item.key()].grad(),
              item.key());
        }
      }
    });
  }
}

TEST(ParallelizeModule, PlainModulesOfOthersAreRefused) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    const auto plain = std::make_shared<Scale>();
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { parallelize_module(*plain, mesh, {}); }),
        AllOf(
            HasSubstr("parameter \"scale\" of a "),
            HasSubstr("Scale"),
            HasSubstr("Build the model inside weft::dtensor::DeferredInit")));
    EXPECT_NO_THROW(make_parallel<Scale>(mesh, {}));
  });
}

// Hooks live in the module as a child, which no pattern is meant for.
TEST(ParallelizeModule, PatternsDoNotReachHooks) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"tp"});
    std::shared_ptr<Model> model;
    {
      const dtensor::DeferredInit scope;
      model = std::make_shared<Model>();
      model->unregister_module("norm");
      model->unregister_module("embed");
    }
    parallelize_module(
        *model,
        mesh,
        {{"",
          PrepareModuleInput(
              {.input_layouts = Shard(0),
               .desired_input_layouts = Replicate()})},
         {"*", ColwiseParallel()}});
    EXPECT_EQ(dtensor::module_hooks(*model).before.size(), 1);
    EXPECT_THAT(
        dtensor::spec_of(model->rest->weight).placements(),
        ElementsAre(Shard(0)));
  });
}

} // namespace
} // namespace weft::tp
