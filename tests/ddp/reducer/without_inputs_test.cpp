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

/// A replica that has run one backward, and its part of the batch of all.
template <class M>
struct Replica {
  Replica(
      const RankContext& self,
      const mesh::DeviceMesh& mesh,
      const DistributedDataParallelOptions& options = {})
      : rank(self.rank),
        replicas(self.world_size),
        batch(wave({replicas * kRows, 6}, 0.1)),
        ddp(model, mesh, options) {
    compute();
  }

  void compute() { ddp(part_of(batch, rank, kRows)).pow(2).mean().backward(); }
  bool is_last() const { return rank + 1 == replicas; }
  void expect_gradients(int64_t with_inputs) const {
    expect_all_close(
        gradients_of(*model), gradients_alone(batch, with_inputs, replicas));
  }

  int64_t rank;
  int64_t replicas;
  at::Tensor batch;
  std::shared_ptr<M> model = std::make_shared<M>();
  DistributedDataParallel<M> ddp;
};

TEST_P(WithoutInputs, AReplicaAddsZerosAndGetsTheResult) {
  for (const bool as_view : {true, false}) {
    for (const bool set_to_none : {true, false}) {
      run_ranks(GetParam(), [&](RankContext& self) {
        const auto n = self.world_size;
        Replica<Mlp> own(
            self,
            self.mesh({n}, {"dp"}),
            {.bucket_cap_mb = 5e-4, .gradient_as_bucket_view = as_view});
        // One more replica is without inputs in each step.
        for (int step = 0; step < 3; ++step) {
          const auto with_inputs = std::max<int64_t>(n - 1 - step, 0);
          own.model->zero_grad(set_to_none);
          int times = 0;
          if (self.rank < with_inputs) {
            own.compute();
          } else {
            own.ddp.reduce_without_inputs([&] { ++times; });
          }
          EXPECT_EQ(times, self.rank < with_inputs ? 0 : 1);
          own.expect_gradients(with_inputs);
        }
        own.model->zero_grad(set_to_none);
        own.compute();
        own.expect_gradients(n);
      });
    }
  }
}

TEST_P(WithoutInputs, AddsWhatWasAccumulatedUnderNoSync) {
  run_ranks(GetParam(), [](RankContext& self) {
    Replica<Mlp> own(self, self.mesh({self.world_size}, {"dp"}));
    own.model->zero_grad();
    if (own.is_last()) {
      {
        const auto guard = own.ddp.no_sync();
        own.compute();
      }
      own.ddp.reduce_without_inputs();
    } else {
      own.compute();
    }
    own.expect_gradients(own.replicas);
  });
}

TEST_P(WithoutInputs, AnUnusedParameterGetsNoGradient) {
  struct WithSpare : Mlp {
    WithSpare() : spare(register_parameter("spare", at::ones({3}))) {}
    at::Tensor spare;
  };
  run_ranks(GetParam(), [](RankContext& self) {
    Replica<WithSpare> own(
        self,
        self.mesh({self.world_size}, {"dp"}),
        {.find_unused_parameters = true, .static_graph = true});
    for (int step = 0; step < 3; ++step) {
      EXPECT_FALSE(own.model->spare.grad().defined()) << "step " << step;
      own.model->zero_grad();
      if (step == 1 && own.is_last()) {
        own.ddp.reduce_without_inputs();
      } else {
        own.compute();
      }
    }
    EXPECT_FALSE(own.model->spare.grad().defined());
  });
}

TEST_P(WithoutInputs, AnErrorMeanwhileIsThrownAfterTheReduction) {
  run_ranks(GetParam(), [](RankContext& self) {
    Replica<Mlp> own(self, self.mesh({self.world_size}, {"dp"}));
    own.model->zero_grad();
    if (own.is_last()) {
      EXPECT_THROW(
          own.ddp.reduce_without_inputs(
              [] { throw std::runtime_error("mine"); }),
          std::runtime_error);
    } else {
      own.compute();
    }
    own.expect_gradients(own.replicas - 1);
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
  run_ranks(GetParam(), [](RankContext& self) {
    // One bucket, which a part of a backward does not send.
    Replica<Model> own(self, self.mesh({self.world_size}, {"dp"}));
    own.model->zero_grad();
    if (own.is_last()) {
      own.model->fails = true;
      EXPECT_THROW(own.compute(), std::runtime_error);
      own.model->zero_grad();
      own.ddp.reduce_without_inputs();
    } else {
      own.compute();
    }
    own.expect_gradients(own.replicas - 1);
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
