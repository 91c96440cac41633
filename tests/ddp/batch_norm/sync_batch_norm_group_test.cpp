// SyncBatchNorm as a module: conversion, modes, errors, and ranks that shadow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/distributed_data_parallel.h"
#include "mesh/communicator/flight_recorder.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::expect_all_close;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNormOptions;
using torch::nn::Sequential;

/// Sequentials hold each other only if forward() is no template.
struct Inner : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};

/// A layer that is called twice, once in a Sequential inside another.
struct Convertible : torch::nn::Module {
  Convertible() {
    BatchNorm1d twice(4);
    body = register_module(
        "body",
        Sequential(
            torch::nn::Linear(4, 4),
            twice,
            std::make_shared<Inner>(
                BatchNorm1d(BatchNormOptions(4).momentum({})), twice)));
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }
  Sequential body{nullptr};
};

TEST(ConvertSyncBatchnorm, ReplacesWhatSequentialsCallAndKeepsItsTensors) {
  run_ranks(2, [](RankContext& self) {
    auto model = std::make_shared<Convertible>();
    model->body->ptr(1)->eval();
    model->body->ptr(1)->as<BatchNorm1d>()->bias.set_requires_grad(false);
    const auto names = model->named_parameters().keys();
    const auto parameters = model->parameters();
    const auto buffers = model->buffers();
    const auto channel = convert_sync_batchnorm(*model, self.mesh({2}, {"dp"}));
    EXPECT_EQ(model->named_parameters().keys(), names);
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(model->parameters()[i].is_same(parameters[i])) << names[i];
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_TRUE(model->buffers()[i].is_same(buffers[i])) << i;
    }
    const auto layer = model->body->ptr<SyncBatchNormImpl>(1);
    const auto& inner = *model->body->ptr<Inner>(2);
    EXPECT_FALSE(layer->is_training());
    EXPECT_TRUE(layer->weight.requires_grad());
    EXPECT_FALSE(layer->bias.requires_grad());
    EXPECT_EQ(inner.ptr(1), layer);
    EXPECT_TRUE(inner.ptr<SyncBatchNormImpl>(0)->is_training());
    EXPECT_EQ(
        inner.ptr<SyncBatchNormImpl>(0)->options.momentum(), std::nullopt);
    EXPECT_EQ(
        sync_batch_norm_groups(*model),
        std::vector<std::shared_ptr<SyncBatchNormGroup>>{channel});
    // What is called is what was registered.
    model->train();
    channel->group().flight_recorder().reset();
    model->forward(wave({2, 4}, 0.1));
    EXPECT_EQ(test::entries_named(channel->group(), "batch norm").size(), 3);
  });
}

TEST(ConvertSyncBatchnorm, LeavesModelsWithoutBatchNormAlone) {
  run_ranks(2, [](RankContext& self) {
    test::Mlp model;
    EXPECT_EQ(convert_sync_batchnorm(model, self.mesh({2}, {"dp"})), nullptr);
    EXPECT_TRUE(sync_batch_norm_groups(model).empty());
  });
}

/// forward() would go on calling the member.
struct TypedMember : torch::nn::Module {
  Sequential body =
      register_module("body", Sequential(torch::nn::BatchNorm3d(4)));
  BatchNorm2d norm = register_module("norm", BatchNorm2d(4));
};

TEST(ConvertSyncBatchnorm, RefusesTypedMembersAndConvertsNothing) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    TypedMember model;
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { convert_sync_batchnorm(model, mesh); }),
        AllOf(
            HasSubstr("norm (BatchNorm2d of TypedMember)"),
            HasSubstr("weft::ddp::SyncBatchNorm")));
    EXPECT_TRUE(model.body->ptr(0)->as<torch::nn::BatchNorm3dImpl>());
    BatchNorm1d alone(4);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { convert_sync_batchnorm(*alone, mesh); }),
        HasSubstr("the module itself (BatchNorm1d)"));
  });
}

TEST(SyncBatchNormModule, CommunicatesInTrainingOnly) {
  run_ranks(2, [](RankContext& self) {
    const auto channel = make_sync_batch_norm_group(self.mesh({2}, {"dp"}));
    for (const bool is_tracked : {true, false}) {
      const auto options = BatchNormOptions(4).track_running_stats(is_tracked);
      SyncBatchNorm layer(options, channel);
      BatchNorm1d alone(options);
      layer->forward(wave({2, 4}, 0.1, at::kFloat));
      alone->forward(at::cat(
          {wave({2, 4}, 0.1, at::kFloat), wave({2, 4}, 0.1, at::kFloat)}));
      layer->eval();
      alone->eval();
      channel->group().flight_recorder().reset();
      // Without running statistics they are those of the rank's own rows.
      const auto x = wave({3, 4}, self.rank + 0.5, at::kFloat);
      expect_all_close(
          {layer->forward(x).detach()}, {alone->forward(x).detach()}, 1e-6);
      EXPECT_TRUE(channel->group().flight_recorder().entries().empty());
    }
  });
}

TEST(SyncBatchNormModule, IsBatchNormOnOneRank) {
  run_ranks(1, [](RankContext& self) {
    SyncBatchNorm layer(
        BatchNormOptions(4),
        make_sync_batch_norm_group(self.mesh({1}, {"dp"})));
    BatchNorm1d alone(4);
    const auto x = wave({3, 4}, 0.5, at::kFloat);
    EXPECT_TRUE(at::equal(layer->forward(x), alone->forward(x)));
    EXPECT_TRUE(at::equal(layer->running_var, alone->running_var));
    EXPECT_EQ(layer->num_batches_tracked.item<int64_t>(), 1);
    EXPECT_THROW(layer->forward(x.narrow(0, 0, 1)), std::exception);
  });
}

TEST(SyncBatchNormModule, IsClonedWithItsChannelAndValuesOfItsOwn) {
  run_ranks(1, [](RankContext& self) {
    SyncBatchNorm layer(
        BatchNormOptions(4),
        make_sync_batch_norm_group(self.mesh({1}, {"dp"})));
    test::fill_parameters(*layer);
    const auto copy =
        std::dynamic_pointer_cast<SyncBatchNormImpl>(layer->clone());
    ASSERT_TRUE(copy);
    EXPECT_EQ(copy->channel(), layer->channel());
    EXPECT_TRUE(at::equal(copy->weight, layer->weight));
    EXPECT_FALSE(copy->weight.is_same(layer->weight));
  });
}

TEST(SyncBatchNormModule, SaysWhatIsWrongWithItsInput) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2}, {"dp"});
    const auto channel = make_sync_batch_norm_group(mesh);
    SyncBatchNorm layer(BatchNormOptions(4), channel);
    const auto says = [&](const at::Tensor& x) {
      return message_of_thrown<c10::ValueError>([&] { layer->forward(x); });
    };
    EXPECT_THAT(says(at::ones({4})), HasSubstr("[N, C, ...]"));
    EXPECT_THAT(says(at::ones({2, 3})), HasSubstr("got 3 channels"));
    // One value a channel in all ranks.
    EXPECT_THAT(
        says(at::ones({self.rank, 4})),
        HasSubstr("expected more than 1 value per channel"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { const SyncBatchNorm none(BatchNormOptions(4), nullptr); }),
        HasSubstr("make_sync_batch_norm_group()"));
    auto x = wave({2, 4}, 0.5, at::kFloat).requires_grad_();
    EXPECT_THAT(
        message_of_thrown<c10::NotImplementedError>([&] {
          torch::autograd::grad(
              {layer->forward(x).pow(2).sum()}, {x}, {}, true, true);
        }),
        HasSubstr("second derivative"));
  });
}

TEST(SyncBatchNormModule, KeepsStatisticsIfNoRankHasRows) {
  run_ranks(2, [](RankContext& self) {
    SyncBatchNorm layer(
        BatchNormOptions(4),
        make_sync_batch_norm_group(self.mesh({2}, {"dp"})));
    auto x = at::empty({0, 4}).requires_grad_();
    const auto y = layer->forward(x);
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_TRUE(at::equal(layer->weight.grad(), at::zeros({4})));
    EXPECT_TRUE(at::equal(layer->running_mean, at::zeros({4})));
    EXPECT_TRUE(at::equal(layer->running_var, at::ones({4})));
  });
}

/// Two layers, of different sizes.
Sequential make_two_layers(const std::shared_ptr<SyncBatchNormGroup>& channel) {
  const auto layer = [&](int64_t features) -> torch::nn::AnyModule {
    const BatchNormOptions options(features);
    return channel ? torch::nn::AnyModule(SyncBatchNorm(options, channel))
                   : torch::nn::AnyModule(BatchNorm1d(options));
  };
  Sequential network;
  network->push_back(torch::nn::Linear(4, 6));
  network->push_back(layer(6));
  network->push_back(torch::nn::Tanh());
  network->push_back(torch::nn::Linear(6, 3));
  network->push_back(layer(3));
  network->to(at::kDouble);
  test::fill_parameters(*network);
  return network;
}

TEST(SyncBatchNormGroupTest, IsShadowedByRanksWithoutInputs) {
  // Rank r has inputs in its first `steps[r]` steps.
  const std::vector<int64_t> steps{3, 1, 2};
  run_ranks(3, [&](RankContext& self) {
    const auto mesh = self.mesh({3}, {"dp"});
    const auto channel = make_sync_batch_norm_group(mesh);
    auto network = make_two_layers(channel);
    auto alone = make_two_layers(nullptr);
    for (int64_t step = 0; step < 4; ++step) {
      if (step >= steps[self.rank]) {
        channel->shadow_pass();
        channel->shadow_pass();
        continue;
      }
      channel->set_announcing(true);
      const auto x = wave({6, 4}, 0.1 + static_cast<double>(step));
      std::vector<at::Tensor> active;
      for (int64_t rank = 0; rank < 3; ++rank) {
        if (step < steps[rank]) {
          active.push_back(x.narrow(0, rank * 2, 2));
        }
      }
      network->zero_grad();
      const auto y = network->forward(x.narrow(0, self.rank * 2, 2));
      channel->end_pass();
      const auto place = std::count_if(
          steps.begin(), steps.begin() + self.rank, [&](int64_t count) {
            return step < count;
          });
      const auto weights =
          wave({static_cast<int64_t>(active.size()) * 2, 3}, 3.1);
      (y * weights.narrow(0, place * 2, 2)).sum().backward();
      channel->end_pass();
      alone->zero_grad();
      const auto expected = alone->forward(at::cat(active));
      (expected * weights).sum().backward();
      expect_all_close(
          {y.detach()}, {expected.detach().narrow(0, place * 2, 2)}, 1e-12);
      expect_all_close(network->buffers(), alone->buffers(), 1e-12);
      if (active.size() == 1) {
        expect_all_close(
            test::gradients_of(*network), test::gradients_of(*alone), 1e-12);
      }
    }
  });
}

TEST(SyncBatchNormGroupTest, FailsOnAllRanksThatAreNotAtTheSameSum) {
  run_ranks(3, [](RankContext& self) {
    const auto channel = make_sync_batch_norm_group(self.mesh({3}, {"dp"}));
    channel->set_announcing(true);
    const auto act = [&](bool first_ends) {
      return message_of_thrown<mesh::DisagreementError>([&] {
        if (self.rank == 2) {
          channel->shadow_pass();
        } else if (self.rank == 0 && first_ends) {
          channel->end_pass();
        } else {
          channel->sum(at::zeros({5 + self.rank}));
        }
      });
    };
    EXPECT_THAT(act(true), HasSubstr("has ended its pass"));
    EXPECT_THAT(act(false), HasSubstr("sums other statistics"));
  });
}

TEST(SyncBatchNormGroupTest, AnnouncesOnlyIfAsked) {
  run_ranks(2, [](RankContext& self) {
    const auto channel = make_sync_batch_norm_group(self.mesh({2}, {"dp"}));
    auto numbers = at::ones({3});
    channel->sum(numbers);
    channel->end_pass();
    EXPECT_EQ(channel->group().flight_recorder().entries().size(), 1);
    EXPECT_TRUE(at::equal(numbers, at::full({3}, 2.0F)));
    channel->set_announcing(true);
    channel->sum(numbers);
    channel->end_pass();
    EXPECT_EQ(channel->group().flight_recorder().entries().size(), 4);
  });
}

TEST(SyncBatchNormGroupTest, WantsAMeshOfOneDim) {
  run_ranks(2, [](RankContext& self) {
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] {
          make_sync_batch_norm_group(self.mesh({2, 1}, {"dp", "tp"}));
        }),
        HasSubstr("mesh[\"dp\"]"));
  });
}

} // namespace
} // namespace weft::ddp
