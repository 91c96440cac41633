// DistributedDataParallel's methods beside forward() and no_sync().
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::expect_all_close;
using test::gradients_of;
using test::message_of_thrown;
using test::Mlp;
using test::part_of;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::HasSubstr;

constexpr int64_t kRows = 2;

/// What one rank has of a batch of `replicas` parts.
std::vector<at::Tensor> alone(int64_t replicas) {
  Mlp model;
  model.forward(wave({replicas * kRows, 6}, 0.1)).pow(2).mean().backward();
  return gradients_of(model);
}

at::Tensor part(const RankContext& self) {
  return part_of(wave({self.world_size * kRows, 6}, 0.1), self.rank, kRows);
}

struct Cloned : torch::nn::Cloneable<Cloned> {
  Cloned() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(4, 2));
    to(at::kDouble);
    test::fill_parameters(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};

// DDP listens to the original's parameters alone; the copy is wrapped again.
TEST(Clone, OfTheModuleIsNotWrapped) {
  run_ranks(2, [](RankContext& self) {
    const auto dp = self.mesh({2}, {"dp"});
    const auto model = std::make_shared<Cloned>();
    DistributedDataParallel<Cloned> ddp(model, dp);
    const auto x = wave({3, 4}, static_cast<double>(self.rank));
    ddp(x).sum().backward();
    const auto reduced = model->layer->weight.grad().clone();

    const auto copy = std::dynamic_pointer_cast<Cloned>(model->clone());
    ASSERT_NE(copy, nullptr);
    EXPECT_TRUE(at::equal(copy->layer->weight, model->layer->weight));
    copy->forward(x).sum().backward();
    EXPECT_TRUE(
        at::allclose(copy->layer->weight.grad(), x.sum(0).expand({2, 4})));
    EXPECT_TRUE(at::equal(model->layer->weight.grad(), reduced));

    copy->zero_grad();
    DistributedDataParallel<Cloned> again(copy, dp);
    again(x).sum().backward();
    EXPECT_TRUE(at::allclose(copy->layer->weight.grad(), reduced));
  });
}

class Methods : public ::testing::TestWithParam<int> {};

TEST_P(Methods, RemovedHooksReduceNothing) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh);
    ddp(part(self)).pow(2).mean().backward();
    ddp.remove_autograd_hooks();
    // Another wrapper of the same model is the only one that reduces.
    DistributedDataParallel second(model, mesh);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      second(part(self)).pow(2).mean().backward();
      expect_all_close(gradients_of(*model), alone(self.world_size));
    }
  });
}

TEST_P(Methods, CheckReducerFinalizedNamesWhatIsAwaited) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    ddp.check_reducer_finalized();
    const auto output = ddp(part(self));
    ddp.check_reducer_finalized();
    auto handle = model->b->weight.register_hook([](const at::Tensor&) {
      throw std::runtime_error("the user's hook failed");
    });
    EXPECT_THROW(output.pow(2).mean().backward(), std::runtime_error);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { ddp.check_reducer_finalized(); }),
        HasSubstr("a.weight, a.bias"));
    model->b->weight.remove_hook(handle);
    model->zero_grad();
    ddp(part(self)).pow(2).mean().backward();
    ddp.check_reducer_finalized();
    expect_all_close(gradients_of(*model), alone(self.world_size));
  });
}

TEST_P(Methods, ManualFinalizationLeavesTheWaitToTheCaller) {
  for (const bool as_view : {true, false}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(
          model,
          self.mesh({self.world_size}, {"dp"}),
          {.bucket_cap_mb = 5e-4, .gradient_as_bucket_view = as_view});
      EXPECT_FALSE(ddp.should_finalize_after_backward());
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>([&] { ddp.finalize_backward(); }),
          HasSubstr("require_manual_backward_finalization(true)"));
      ddp.require_manual_backward_finalization(true);
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        ddp(part(self)).pow(2).mean().backward();
        EXPECT_TRUE(ddp.should_finalize_after_backward());
        ddp.finalize_backward();
        expect_all_close(gradients_of(*model), alone(self.world_size));
        EXPECT_THAT(
            message_of_thrown<c10::ValueError>(
                [&] { ddp.finalize_backward(); }),
            HasSubstr("once after each backward()"));
      }
      ddp.require_manual_backward_finalization(false);
      model->zero_grad();
      ddp(part(self)).pow(2).mean().backward();
      expect_all_close(gradients_of(*model), alone(self.world_size));
    });
  }
}

TEST_P(Methods, SetStaticGraphIsTheOption) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    ddp.set_static_graph();
    EXPECT_TRUE(ddp.get_ddp_logging_data().static_graph);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      ddp(part(self)).pow(2).mean().backward();
      expect_all_close(gradients_of(*model), alone(self.world_size));
    }
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { ddp.set_static_graph(); }),
        HasSubstr("static"));
  });
}

TEST_P(Methods, BufferCommHooksReplaceTheBroadcast) {
  for (const auto location :
       {BufferCommHookLocation::PRE_FORWARD,
        BufferCommHookLocation::POST_FORWARD}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      const auto mesh = self.mesh({self.world_size}, {"dp"});
      auto norm = torch::nn::BatchNorm1d(3);
      torch::nn::Sequential model(norm);
      DistributedDataParallel ddp(model, mesh);
      EXPECT_EQ(ddp.will_sync_module_buffers(), self.world_size > 1);
      int calls = 0;
      ddp.register_buffer_comm_hook(
          [&](const std::vector<data_parallel::NamedTensor>& buffers) {
            ++calls;
            ASSERT_EQ(buffers.size(), 3);
            EXPECT_EQ(buffers[0].name, "0.running_mean");
            auto mean = buffers[0].tensor;
            mesh.group("dp").all_reduce(mean, mesh::ReduceOp::kAvg).wait();
          },
          location);
      norm->options.momentum(0.0);
      norm->running_mean.fill_(static_cast<double>(self.rank));
      const auto x = wave({4, 3}, 0.1, at::kFloat);
      (void)ddp(x);
      const auto middle = static_cast<float>(self.world_size - 1) / 2;
      EXPECT_EQ(norm->running_mean[0].item<float>(), middle);
      {
        // Once for all accumulated forwards, in the first of them.
        const auto guard = ddp.no_sync();
        EXPECT_EQ(ddp.will_sync_module_buffers(), self.world_size > 1);
        (void)ddp(x);
        EXPECT_FALSE(ddp.will_sync_module_buffers());
        (void)ddp(x);
      }
      model->eval();
      EXPECT_FALSE(ddp.will_sync_module_buffers());
      (void)ddp(x);
      EXPECT_EQ(calls, self.world_size > 1 ? 2 : 0);
    });
  }
}

/// A mesh of the first `n` ranks for those, nothing for others.
std::optional<mesh::DeviceMesh> mesh_of_first(RankContext& self, int64_t n) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < n; ++rank) {
    ranks.push_back(rank);
  }
  if (self.rank >= n) {
    return std::nullopt;
  }
  return mesh::DeviceMesh::from_group(
      self.world, self.world.make_group("first", ranks));
}

TEST_P(Methods, UpdateProcessGroupGoesOnWithFewerReplicasAfterAnError) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(
        model, self.mesh({n}, {"dp"}), {.bucket_cap_mb = 5e-4});
    ddp(part(self)).pow(2).mean().backward();
    auto handle = model->b->weight.register_hook([](const at::Tensor&) {
      throw std::runtime_error("the user's hook failed");
    });
    EXPECT_THROW(ddp(part(self)).pow(2).mean().backward(), std::runtime_error);
    model->b->weight.remove_hook(handle);
    const auto rest = std::max<int64_t>(n - 1, 1);
    const auto fewer = mesh_of_first(self, rest);
    if (!fewer) {
      return;
    }
    ddp.update_process_group(*fewer);
    EXPECT_EQ(ddp.mesh().size(), rest);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      const auto x = wave({rest * kRows, 6}, 0.1);
      ddp(part_of(x, self.rank, kRows)).pow(2).mean().backward();
      expect_all_close(gradients_of(*model), alone(rest));
    }
  });
}

/// Divides as it says, or not.
std::shared_ptr<data_parallel::CommHook> hook_that(
    bool says_it_divides,
    bool divides) {
  return data_parallel::make_comm_hook(
      "test_hook",
      says_it_divides,
      [divides](const data_parallel::GradBucket& bucket) {
        auto group = bucket.group;
        auto buffer = bucket.buffer;
        if (divides) {
          buffer.div_(static_cast<double>(group.size()));
        }
        return data_parallel::BucketFuture(
            group.all_reduce(buffer, mesh::ReduceOp::kSum, "test"), buffer);
      });
}

TEST_P(Methods, RegisterCommHookRefusesToDivideTwiceOrNever) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto mesh = self.mesh({self.world_size}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh);
    const auto refusal = [&](bool says_it_divides, bool divides) {
      return message_of_thrown<c10::ValueError>(
          [&] { ddp.register_comm_hook(hook_that(says_it_divides, divides)); });
    };
    if (self.world_size > 1) {
      EXPECT_THAT(refusal(true, false), HasSubstr("would not be divided"));
      EXPECT_THAT(refusal(false, true), HasSubstr("divided twice"));
    }
    for (const bool divides : {true, false}) {
      auto own = std::make_shared<Mlp>();
      DistributedDataParallel hooked(own, mesh);
      hooked.register_comm_hook(hook_that(divides, divides));
      hooked(part(self)).pow(2).mean().backward();
      expect_all_close(gradients_of(*own), alone(self.world_size));
      EXPECT_THAT(
          message_of_thrown<c10::ValueError>(
              [&] { hooked.register_comm_hook(hook_that(true, true)); }),
          HasSubstr("a hook is already registered: test_hook"));
    }
    DistributedDataParallel sum(
        std::make_shared<Mlp>(), mesh, {.reduce_op = mesh::ReduceOp::kSum});
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { sum.register_comm_hook(hook_that(true, true)); }),
        HasSubstr("gradients would be divided twice"));
  });
}

TEST_P(Methods, AHookThatReturnsAWrongShapeIsAnErrorOnAllRanks) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    const auto last = self.world_size - 1;
    const bool is_wrong = self.rank == last;
    ddp.register_comm_hook(data_parallel::make_comm_hook(
        "short_hook", true, [=](const data_parallel::GradBucket& bucket) {
          auto group = bucket.group;
          auto buffer = bucket.buffer;
          auto work = group.all_reduce(buffer, mesh::ReduceOp::kAvg, "test");
          // Right on the bucket that it is tried on.
          const auto kept = is_wrong && buffer.numel() > 4 ? 3 : buffer.numel();
          return data_parallel::BucketFuture(
              std::move(work), buffer.narrow(0, 0, kept));
        }));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { ddp(part(self)).pow(2).mean().backward(); }),
        ::testing::AllOf(
            HasSubstr("rank " + std::to_string(last)), HasSubstr("hook")));
  });
}

TEST_P(Methods, ForwardGoesThroughTheModulesHooks) {
  run_ranks(GetParam(), [](RankContext& self) {
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({self.world_size}, {"dp"}));
    auto& hooks = dtensor::module_hooks(*model);
    int before = 0;
    int after = 0;
    hooks.before.push_back([&](std::vector<at::Tensor>&) { ++before; });
    hooks.after.push_back([&](const at::Tensor& output) {
      ++after;
      return output;
    });
    ddp(part(self)).pow(2).mean().backward();
    EXPECT_EQ(before, 1);
    EXPECT_EQ(after, 1);
    expect_all_close(gradients_of(*model), alone(self.world_size));
  });
}

TEST_P(Methods, OutputsMayBeChangedInPlace) {
  for (const bool searches : {true, false}) {
    run_ranks(GetParam(), [&](RankContext& self) {
      auto model = std::make_shared<Mlp>();
      DistributedDataParallel ddp(
          model,
          self.mesh({self.world_size}, {"dp"}),
          {.find_unused_parameters = searches, .static_graph = !searches});
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        auto output = ddp(part(self));
        output.mul_(2).div_(2);
        output.pow(2).mean().backward();
        expect_all_close(gradients_of(*model), alone(self.world_size));
      }
    });
  }
}

/// A product of parameters that DDP treats differently.
struct Casting : torch::nn::Module {
  Casting() {
    for (const std::string name : {"trained", "frozen", "ignored"}) {
      weights.push_back(register_parameter(
          name, wave({4}, 0.1 + static_cast<double>(weights.size()))));
    }
    weights[1].set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    seen.clear();
    for (const auto& weight : weights) {
      seen.push_back(weight.scalar_type());
    }
    return x * weights[0] * weights[1] * weights[2].to(x.scalar_type());
  }
  std::vector<at::Tensor> weights;
  std::vector<at::ScalarType> seen;
};

TEST_P(Methods, MixedPrecisionCastsFrozenParametersAndLeavesIgnoredOnesAlone) {
  run_ranks(GetParam(), [](RankContext& self) {
    MixedPrecision precision;
    precision.param_dtype = at::kFloat;
    auto model = std::make_shared<Casting>();
    const auto before = model->weights[0].detach().clone();
    DistributedDataParallel ddp(
        model,
        self.mesh({self.world_size}, {"dp"}),
        {.mixed_precision = precision,
         .params_and_buffers_to_ignore = {"ignored"}});
    for (int step = 0; step < 3; ++step) {
      const auto output = ddp(wave({4}, 0.7));
      EXPECT_EQ(output.scalar_type(), at::kFloat);
      EXPECT_THAT(
          model->seen,
          ::testing::ElementsAre(at::kFloat, at::kFloat, at::kDouble));
      // Saving between forward and backward disturbs neither.
      EXPECT_TRUE(at::equal(
          dtensor::full_tensor(ddp.state_dict().at("trained")), before));
      output.sum().backward();
      for (const auto& weight : model->weights) {
        EXPECT_EQ(weight.scalar_type(), at::kDouble);
      }
      EXPECT_EQ(model->weights[0].grad().scalar_type(), at::kDouble);
      EXPECT_TRUE(at::equal(
          dtensor::full_tensor(ddp.state_dict().at("trained")), before));
      model->zero_grad();
    }
    EXPECT_TRUE(at::equal(model->weights[0].detach(), before));
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Methods,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::ddp
