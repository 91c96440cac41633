// Gradients of several backward passes, with and without no_sync().
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "tests/ddp/models.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using test::entries_named;
using test::expect_all_close;
using test::gradients_of;
using test::Mlp;
using test::RankContext;
using test::run_ranks;
using test::wave;

constexpr int64_t kMicroBatches = 3;
constexpr int64_t kMicroRows = 2;

class Accumulation : public ::testing::TestWithParam<int> {};

/// Rows of one rank's micro-batch.
at::Tensor micro_batch(const at::Tensor& batch, int64_t rank, int64_t i) {
  return batch.narrow(0, (rank * kMicroBatches + i) * kMicroRows, kMicroRows);
}

std::vector<at::Tensor> alone_on(const at::Tensor& batch) {
  Mlp model;
  model.forward(batch).pow(2).mean().backward();
  return gradients_of(model);
}

TEST_P(Accumulation, UnderNoSyncEqualsTheWholeBatch) {
  for (const bool as_view : {true, false}) {
    for (const bool set_to_none : {true, false}) {
      run_ranks(GetParam(), [&](RankContext& self) {
        const auto n = self.world_size;
        const auto x = wave({n * kMicroBatches * kMicroRows, 6}, 0.1);
        const auto mesh = self.mesh({n}, {"dp"});
        auto model = std::make_shared<Mlp>();
        DistributedDataParallel ddp(
            model,
            mesh,
            {.bucket_cap_mb = 5e-4, .gradient_as_bucket_view = as_view});
        for (int step = 0; step < 3; ++step) {
          model->zero_grad(set_to_none);
          mesh.group("dp").flight_recorder().reset();
          const auto run = [&](int64_t i) {
            const auto output = ddp(micro_batch(x, self.rank, i));
            (output.pow(2).mean() / kMicroBatches).backward();
          };
          {
            const auto guard = ddp.no_sync();
            for (int64_t i = 0; i + 1 < kMicroBatches; ++i) {
              run(i);
            }
            EXPECT_TRUE(mesh.group("dp").flight_recorder().entries().empty());
          }
          run(kMicroBatches - 1);
          expect_all_close(gradients_of(*model), alone_on(x));
        }
      });
    }
  }
}

TEST_P(Accumulation, OfReducedGradientsAddsTheirAverages) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kMicroBatches * kMicroRows, 6}, 0.1);
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, self.mesh({n}, {"dp"}));
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      const auto output = ddp(micro_batch(x, self.rank, i));
      (output.pow(2).mean() / kMicroBatches).backward();
    }
    expect_all_close(gradients_of(*model), alone_on(x));
  });
}

TEST_P(Accumulation, OfSeveralForwardsInOneBackwardIsReducedOnce) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto x = wave({n * kMicroBatches * kMicroRows, 6}, 0.1);
    const auto mesh = self.mesh({n}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      mesh.group("dp").flight_recorder().reset();
      auto loss = at::zeros({}, at::kDouble);
      for (int64_t i = 0; i < kMicroBatches; ++i) {
        const auto output = ddp(micro_batch(x, self.rank, i));
        loss = loss + output.pow(2).mean() / kMicroBatches;
      }
      loss.backward();
      expect_all_close(gradients_of(*model), alone_on(x));
      EXPECT_EQ(
          entries_named(mesh.group("dp"), "ddp bucket").size(), n > 1 ? 1 : 0);
    }
  });
}

TEST_P(Accumulation, GuardsNest) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto mesh = self.mesh({n}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh);
    const auto count = [&] {
      mesh.group("dp").flight_recorder().reset();
      ddp(wave({2, 6}, 0.1)).sum().backward();
      return entries_named(mesh.group("dp"), "ddp bucket").size();
    };
    {
      const auto outer = ddp.no_sync();
      { const auto inner = ddp.no_sync(); }
      EXPECT_EQ(count(), 0);
    }
    EXPECT_EQ(count(), n > 1 ? 1 : 0);
  });
}

TEST_P(Accumulation, BackwardToInputsAloneReducesNothing) {
  run_ranks(GetParam(), [](RankContext& self) {
    const auto n = self.world_size;
    const auto mesh = self.mesh({n}, {"dp"});
    auto model = std::make_shared<Mlp>();
    DistributedDataParallel ddp(model, mesh);
    mesh.group("dp").flight_recorder().reset();
    auto x = wave({2, 6}, 0.1).requires_grad_();
    const auto gradient =
        torch::autograd::grad({ddp(x).pow(2).mean()}, {x}).at(0);
    EXPECT_GT(gradient.abs().max().item<double>(), 0.0);
    EXPECT_TRUE(mesh.group("dp").flight_recorder().entries().empty());
    ddp(x).pow(2).mean().backward();
    expect_all_close(gradients_of(*model), alone_on(x.detach()));
  });
}

INSTANTIATE_TEST_SUITE_P(
    WorldSize,
    Accumulation,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

} // namespace
} // namespace weft::ddp
