// Reductions in which a replica takes part without forward and backward.
#include <algorithm>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/distributed_data_parallel.h"
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

class WithoutInputs : public ::testing::TestWithParam<int> {};

/// The mean over `replicas` of the gradients of the first `with_inputs` ones,
/// each of which has kRows rows of `batch`.
std::vector<at::Tensor> gradients_alone(
    const at::Tensor& batch,
    int64_t with_inputs,
    int64_t replicas) {
  Mlp model;
  auto loss = at::zeros({}, at::kDouble);
  for (int64_t rank = 0; rank < with_inputs; ++rank) {
    loss = loss +
           model.forward(part_of(batch, rank, kRows)).pow(2).mean() / replicas;
  }
  // Also without a row every parameter has a gradient.
  (loss + model.forward(batch).sum() * 0).backward();
  return gradients_of(model);
}

TEST_P(WithoutInputs, AReplicaAddsZerosAndGetsTheResult) {
  for (const bool as_view : {true, false}) {
    for (const bool set_to_none : {true, false}) {
      run_ranks(GetParam(), [&](RankContext& self) {
        const auto n = self.world_size;
        const auto x = wave({n * kRows, 6}, 0.1);
        auto model = std::make_shared<Mlp>();
        DistributedDataParallel ddp(
            model,
            self.mesh({n}, {"dp"}),
            {.bucket_cap_mb = 5e-4, .gradient_as_bucket_view = as_view});
        const auto compute = [&] {
          ddp(part_of(x, self.rank, kRows)).pow(2).mean().backward();
        };
        compute();
        for (int step = 0; step < 3;
             ++step) { // The last rank, the one before..
          const auto with_inputs = std::max<int64_t>(n - 1 - step, 0);
          model->zero_grad(set_to_none);
          int times = 0;
          if (self.rank < with_inputs) {
            compute();
          } else {
            ddp.reduce_without_inputs([&] { ++times; });
          }
          EXPECT_EQ(times, self.rank < with_inputs ? 0 : 1);
          expect_all_close(
              gradients_of(*model), gradients_alone(x, with_inputs, n));
        }
        model->zero_grad(set_to_none);
        compute();
        expect_all_close(gradients_of(*model), gradients_alone(x, n, n));
      });
    }
  }
}

TEST_P(WithoutInputs, AddsWhatWasAccumulatedUnderNoSync) {
  run_ranks(GetParam(), [&](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kRows, 6}, 0.1);
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto compute = [&] {
      ddp(part_of(x, self.rank, kRows)).pow(2).mean().backward();
    };
    compute();
    model->zero_grad();
    if (self.rank + 1 < n) {
      compute();
    } else {
      {
        const auto guard = ddp.no_sync();
        compute();
      }
      ddp.reduce_without_inputs();
    }
    expect_all_close(gradients_of(*model), gradients_alone(x, n, n));
  });
}

TEST_P(WithoutInputs, AnUnusedParameterGetsNoGradient) {
  struct WithSpare : Mlp {
    WithSpare() : spare(register_parameter("spare", at::ones({3}))) {}
    at::Tensor spare;
  };
  run_ranks(GetParam(), [&](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kRows, 6}, 0.1);
    auto model = std::make_shared<WithSpare>();
    DistributedDataParallel ddp(
        model,
        self.mesh({n}, {"dp"}),
        {.find_unused_parameters = true, .static_graph = true});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      if (step == 2 && self.rank + 1 == n) {
        ddp.reduce_without_inputs();
      } else {
        ddp(part_of(x, self.rank, kRows)).pow(2).mean().backward();
      }
      EXPECT_FALSE(model->spare.grad().defined()) << "step " << step;
    }
  });
}

TEST_P(WithoutInputs, AnErrorMeanwhileIsThrownAfterTheReduction) {
  run_ranks(GetParam(), [&](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kRows, 6}, 0.1);
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto compute = [&] {
      ddp(part_of(x, self.rank, kRows)).pow(2).mean().backward();
    };
    compute();
    model->zero_grad();
    if (self.rank + 1 < n) {
      compute();
    } else {
      EXPECT_THROW(
          ddp.reduce_without_inputs([] { throw std::runtime_error("mine"); }),
          std::runtime_error);
    }
    expect_all_close(gradients_of(*model), gradients_alone(x, n - 1, n));
  });
}

/// Fails in backward where it is told to.
struct Failing : torch::autograd::Function<Failing> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* /*context*/,
      const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      torch::autograd::variable_list /*gradients*/) {
    throw std::runtime_error("backward");
  }
};

TEST_P(WithoutInputs, ComesAfterABackwardThatFailedHere) {
  struct Model : Mlp {
    at::Tensor forward(const at::Tensor& x) {
      auto y = at::tanh(a(x));
      return c(at::tanh(b(fails ? Failing::apply(y) : y)));
    }
    bool fails = false;
  };
  run_ranks(GetParam(), [&](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kRows, 6}, 0.1);
    auto model = std::make_shared<Model>();
    // One bucket, which a part of a backward does not send.
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    const auto compute = [&] {
      ddp(part_of(x, self.rank, kRows)).pow(2).mean().backward();
    };
    compute();
    model->zero_grad();
    if (self.rank + 1 < n) {
      compute();
    } else {
      model->fails = true;
      EXPECT_THROW(compute(), std::runtime_error);
      model->zero_grad();
      ddp.reduce_without_inputs();
    }
    expect_all_close(gradients_of(*model), gradients_alone(x, n - 1, n));
  });
}

/// A module with buffers.
struct Normed : Mlp {
  Normed() : norm(register_module("norm", torch::nn::BatchNorm1d(6))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return Mlp::forward(norm(x)); }
  torch::nn::BatchNorm1d norm;
};

TEST_P(WithoutInputs, IsRefusedWhereTheOthersWouldWait) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto mesh = self.mesh({n}, {"dp"});
    const auto x = wave({kRows, 6}, 0.1);
    const auto refused = [](auto& ddp) {
      return message_of_thrown<c10::ValueError>(
          [&] { ddp.reduce_without_inputs(); });
    };
    DistributedDataParallel plain(std::make_shared<Mlp>(), mesh);
    EXPECT_THAT(
        refused(plain),
        HasSubstr("reduce_without_inputs() cannot be called before the first "
                  "backward"));
    plain(x).sum().backward();
    {
      const auto guard = plain.no_sync();
      EXPECT_THAT(refused(plain), HasSubstr("under no_sync()"));
    }
    plain.join([&] { EXPECT_THAT(refused(plain), HasSubstr("in a Join")); });
    DistributedDataParallel searching(
        std::make_shared<Mlp>(), mesh, {.find_unused_parameters = true});
    searching(x).sum().backward();
    DistributedDataParallel with_buffers(std::make_shared<Normed>(), mesh);
    with_buffers(x).sum().backward();
    if (n == 1) { // Nobody is waited for.
      with_buffers.reduce_without_inputs();
      searching.reduce_without_inputs();
    } else {
      EXPECT_THAT(refused(with_buffers), HasSubstr("forward_sync_buffers"));
      EXPECT_THAT(refused(searching), HasSubstr("with find_unused_parameters"));
    }
    auto normed = std::make_shared<torch::nn::SequentialImpl>(
        torch::nn::BatchNorm1d(6), torch::nn::Linear(6, 2));
    normed->to(at::kDouble);
    const auto channel = convert_sync_batchnorm(*normed, mesh);
    DistributedDataParallel synchronized(
        normed, mesh, {.forward_sync_buffers = false});
    synchronized(x).sum().backward();
    EXPECT_THAT(refused(synchronized), HasSubstr("with SyncBatchNorm"));
  });
}

INSTANTIATE_TEST_SUITE_P(Replicas, WithoutInputs, ::testing::Values(1, 2, 3));

} // namespace
} // namespace weft::ddp
