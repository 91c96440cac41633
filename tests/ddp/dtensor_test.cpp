// Replicas whose parameters are DTensors on the other mesh dim.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/parameter_info.h"
#include "mesh/error/error.h"
#include "tests/ddp/models.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

namespace weft::ddp {
namespace {

using dtensor::Partial;
using dtensor::Placements;
using dtensor::Replicate;
using dtensor::Shard;
using test::entries_named;
using test::expect_all_close;
using test::message_of_thrown;
using test::RankContext;
using test::run_ranks;
using test::wave;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int64_t kSequence = 6;
constexpr int64_t kDim = 8;
constexpr double kLearningRate = 0.2;
constexpr int kSteps = 4;

/// A block with sequence parallelism. Legend: B batch, T sequence, D dim.
struct Block : torch::nn::Module {
  Block()
      : norm(register_parameter("norm", at::ones({kDim}))),
        up(register_module("up", torch::nn::Linear(kDim, 3 * kDim))),
        down(register_module("down", torch::nn::Linear(3 * kDim, kDim))),
        head(register_module("head", torch::nn::Linear(kDim, 5))) {}

  at::Tensor forward(const at::Tensor& x_BTD) {
    const auto normed_BTD = at::rms_norm(x_BTD, {kDim}, norm);
    const auto y_BTD = run(down, at::tanh(run(up, normed_BTD)));
    return run(head, x_BTD + y_BTD);
  }

  static at::Tensor run(torch::nn::Linear& layer, const at::Tensor& x) {
    return at::linear(x, layer->weight, layer->bias);
  }

  at::Tensor norm;
  torch::nn::Linear up, down, head;
};

/// Gradients of norm, head.weight and head.bias (and down.bias) are pending
/// sums: their inputs are sharded along the sequence.
void parallelize(Block& block, const mesh::DeviceMesh& tp) {
  const auto place = [&](const at::Tensor& tensor, dtensor::Placement where) {
    dtensor::set_placements(tensor, tp, {where});
  };
  place(block.norm, Replicate());
  place(block.up->weight, Shard(0));
  place(block.up->bias, Shard(0));
  place(block.down->weight, Shard(1));
  place(block.down->bias, Replicate());
  place(block.head->weight, Replicate());
  place(block.head->bias, Replicate());
  dtensor::parameter_info(block.down->weight).linear.output =
      Placements{Shard(1)};
}

/// Values, in double.
void materialize(Block& block, uint64_t seed = 7) {
  dtensor::materialize(block, seed);
  block.to(at::kDouble);
}

std::shared_ptr<Block> make_block(
    const mesh::DeviceMesh& tp,
    bool materialized = true) {
  std::shared_ptr<Block> block;
  {
    const dtensor::DeferredInit scope;
    block = std::make_shared<Block>();
  }
  parallelize(*block, tp);
  if (materialized) {
    materialize(*block);
  }
  return block;
}

/// Equal values in plain tensors.
/// Collective: all ranks of the block's mesh.
std::shared_ptr<Block> plain_copy(const Block& block) {
  auto plain = std::make_shared<Block>();
  plain->to(at::kDouble);
  const at::NoGradGuard no_grad;
  auto to = plain->parameters();
  const auto from = block.parameters();
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].copy_(dtensor::full_tensor(from[i]));
  }
  return plain;
}

std::vector<at::Tensor> full(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) {
    result.push_back(dtensor::full_tensor(tensor.detach()));
  }
  return result;
}

/// This replica's rows, shard along the sequence over tp.
at::Tensor input_of(const at::Tensor& batch, const mesh::DeviceMesh& mesh) {
  const auto rows = batch.size(0) / mesh.size("dp");
  return dtensor::distribute_tensor(
      batch.narrow(0, rows * mesh.coordinate("dp"), rows),
      mesh["tp"],
      {Shard(1)},
      std::nullopt);
}

at::Tensor loss_of(const at::Tensor& output) {
  return dtensor::is_dtensor(output)
             ? dtensor::full_tensor(output.pow(2).mean())
             : output.pow(2).mean();
}

/// The plain block's parameters' gradients after training on the whole batch.
std::vector<at::Tensor>
train_alone(Block& block, const at::Tensor& batch, int steps) {
  torch::optim::SGD optimizer(block.parameters(), kLearningRate);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(block.forward(batch)).backward();
    optimizer.step();
  }
  return test::gradients_of(block);
}

struct Layout {
  int64_t dp;
  int64_t tp;
};

class TwoDims : public ::testing::TestWithParam<Layout> {
 protected:
  template <class Body>
  void run(const Body& body) {
    const auto [dp, tp] = GetParam();
    run_ranks(static_cast<int>(dp * tp), [&, dp = dp, tp = tp](auto& self) {
      body(self.mesh({dp, tp}, {"dp", "tp"}));
    });
  }
  at::Tensor batch() const {
    return wave({2 * GetParam().dp, kSequence, kDim}, 0.1);
  }
};

TEST_P(TwoDims, TrainAsOneRank) {
  for (const bool as_view : {true, false}) {
    for (const bool set_to_none : {true, false}) {
      run([&](const mesh::DeviceMesh& mesh) {
        auto block = make_block(mesh["tp"]);
        auto alone = plain_copy(*block);
        DistributedDataParallel ddp(
            block,
            mesh["dp"],
            {.bucket_cap_mb = 1e-3, .gradient_as_bucket_view = as_view});
        torch::optim::SGD optimizer(block->parameters(), kLearningRate);
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad(set_to_none);
          loss_of(ddp(input_of(batch(), mesh))).backward();
          for (const auto& parameter : block->parameters()) {
            EXPECT_EQ(
                dtensor::spec_of(parameter.grad()),
                dtensor::spec_of(parameter));
          }
          optimizer.step();
        }
        const auto expected = train_alone(*alone, batch(), kSteps);
        expect_all_close(full(test::gradients_of(*block)), expected);
        expect_all_close(full(block->parameters()), alone->parameters());
      });
    }
  }
}

TEST_P(TwoDims, AReplicaWithoutInputsAddsZeros) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto block = make_block(mesh["tp"]);
    auto alone = plain_copy(*block);
    DistributedDataParallel ddp(block, mesh["dp"]);
    const auto x = batch();
    loss_of(ddp(input_of(x, mesh))).backward();
    block->zero_grad();
    const auto last = mesh.size("dp") - 1;
    if (mesh.coordinate("dp") < last) {
      loss_of(ddp(input_of(x, mesh))).backward();
    } else {
      ddp.reduce_without_inputs();
    }
    for (const auto& parameter : block->parameters()) {
      EXPECT_EQ(
          dtensor::spec_of(parameter.grad()), dtensor::spec_of(parameter));
    }
    // The mean over the others' rows, of which there may be none.
    const auto rows = x.narrow(0, 0, 2 * std::max<int64_t>(last, 1));
    const double weight = static_cast<double>(last) / (last + 1);
    (loss_of(alone->forward(rows)) * weight).backward();
    expect_all_close(
        full(test::gradients_of(*block)), test::gradients_of(*alone));
  });
}

TEST_P(TwoDims, HaveTheSameGradientsWithoutDdp) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto block = make_block(mesh["tp"]);
    auto alone = plain_copy(*block);
    const auto x = batch().narrow(0, 0, 2);
    for (int step = 0; step < 2; ++step) {
      block->zero_grad();
      loss_of(block->forward(dtensor::distribute_tensor(
                  x, mesh["tp"], {Shard(1)}, std::nullopt)))
          .backward();
    }
    loss_of(alone->forward(x)).backward();
    expect_all_close(
        full(test::gradients_of(*block)), test::gradients_of(*alone));
  });
}

TEST_P(TwoDims, ReducePendingSumsOnceForAllAccumulatedMicroBatches) {
  for (const bool set_to_none : {true, false}) {
    run([&](const mesh::DeviceMesh& mesh) {
      auto block = make_block(mesh["tp"]);
      auto alone = plain_copy(*block);
      DistributedDataParallel ddp(block, mesh["dp"]);
      const auto x = batch();
      const auto sums = [&] {
        return entries_named(mesh.group("tp"), "ddp bucket").size() +
               entries_named(mesh.group("tp"), "partial gradients").size();
      };
      for (int step = 0; step < 3; ++step) {
        block->zero_grad(set_to_none);
        mesh.group("tp").flight_recorder().reset();
        const auto run = [&](int64_t row) {
          // Every other row: each replica has two.
          const auto micro = x.view({-1, 2, kSequence, kDim}).select(1, row);
          (loss_of(ddp(input_of(micro, mesh))) / 2).backward();
        };
        {
          const auto guard = ddp.no_sync();
          run(0);
          if (mesh.size("tp") > 1) {
            EXPECT_TRUE(dtensor::spec_of(block->norm.grad()).has_partial());
          }
          EXPECT_EQ(sums(), 0);
        }
        run(1);
        EXPECT_FALSE(dtensor::spec_of(block->norm.grad()).has_partial());
        EXPECT_EQ(sums(), mesh.size("tp") > 1 ? 1 : 0);
      }
      loss_of(alone->forward(x)).backward();
      expect_all_close(
          full(test::gradients_of(*block)), test::gradients_of(*alone));
    });
  }
}

TEST_P(TwoDims, AccumulateOntoReducedGradients) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto block = make_block(mesh["tp"]);
    auto alone = plain_copy(*block);
    DistributedDataParallel ddp(block, mesh["dp"]);
    for (int i = 0; i < 3; ++i) {
      loss_of(ddp(input_of(batch(), mesh))).backward();
      loss_of(alone->forward(batch())).backward();
    }
    expect_all_close(
        full(test::gradients_of(*block)), test::gradients_of(*alone));
  });
}

TEST_P(TwoDims, KeepCollectivesOfTheDimsApart) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto block = make_block(mesh["tp"]);
    DistributedDataParallel ddp(block, mesh["dp"]);
    const auto step = [&] {
      block->zero_grad();
      loss_of(ddp(input_of(batch(), mesh))).backward();
    };
    step();
    mesh.group("dp").flight_recorder().reset();
    mesh.group("tp").flight_recorder().reset();
    step();
    const auto buckets = ddp.bucket_names();
    if (mesh.size("dp") > 1 && mesh.size("tp") > 1) {
      ASSERT_EQ(buckets.size(), 2);
      EXPECT_THAT(
          buckets[0],
          UnorderedElementsAre("up.weight", "up.bias", "down.weight"));
      EXPECT_THAT(
          buckets[1],
          UnorderedElementsAre(
              "norm", "down.bias", "head.weight", "head.bias"));
    }
    for (const auto& entry : mesh.group("dp").flight_recorder().entries()) {
      EXPECT_THAT(entry.name, HasSubstr("ddp bucket"));
    }
    EXPECT_EQ(
        mesh.group("dp").flight_recorder().entries().size(),
        mesh.size("dp") > 1 ? buckets.size() : 0);
  });
}

TEST_P(TwoDims, WaitForDeferredParameters) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto block = make_block(mesh["tp"], /*materialized=*/false);
    DistributedDataParallel ddp(block, mesh["dp"]);
    const auto x = input_of(batch(), mesh);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { ddp(x); }),
        HasSubstr("norm has no values yet. Call weft::dtensor::materialize"));
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>([&] { (void)ddp.bucket_names(); }),
        HasSubstr("synchronize_parameters()"));
    materialize(*block);
    loss_of(ddp(x)).backward();
    auto alone = plain_copy(*block);
    loss_of(alone->forward(batch())).backward();
    expect_all_close(
        full(test::gradients_of(*block)), test::gradients_of(*alone));
  });
}

TEST_P(TwoDims, StartFromTheFirstReplicasShards) {
  run([&](const mesh::DeviceMesh& mesh) {
    auto block = make_block(mesh["tp"], /*materialized=*/false);
    materialize(*block, 7 + mesh.coordinate("dp"));
    const DistributedDataParallel ddp(block, mesh["dp"]);
    auto expected = make_block(mesh["tp"]);
    expect_all_close(
        full(block->parameters()), full(expected->parameters()), 0.0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layout,
    TwoDims,
    ::testing::Values(
        Layout{1, 1},
        Layout{2, 1},
        Layout{1, 2},
        Layout{2, 2},
        Layout{1, 3},
        Layout{1, 4}),
    [](const auto& info) {
      return "Dp" + std::to_string(info.param.dp) + "Tp" +
             std::to_string(info.param.tp);
    });

TEST(TwoDimsFailure, AParameterOnTheReplicasMeshIsRefused) {
  run_ranks(2, [](RankContext& self) {
    const auto mesh = self.mesh({2, 1}, {"dp", "tp"});
    auto block = make_block(mesh["dp"]);
    EXPECT_THAT(
        message_of_thrown<c10::ValueError>(
            [&] { const DistributedDataParallel ddp(block, mesh["dp"]); }),
        HasSubstr("norm is "));
  });
}

TEST(TwoDimsFailure, ReplicasWithOtherPlacementsAreRefused) {
  run_ranks(4, [](RankContext& self) {
    const auto mesh = self.mesh({2, 2}, {"dp", "tp"});
    std::shared_ptr<Block> block;
    {
      const dtensor::DeferredInit scope;
      block = std::make_shared<Block>();
    }
    if (mesh.coordinate("dp") == 1) {
      dtensor::set_placements(block->up->bias, mesh["tp"], {Replicate()});
    } else {
      dtensor::set_placements(block->up->bias, mesh["tp"], {Shard(0)});
    }
    materialize(*block);
    const auto message = message_of_thrown<mesh::DisagreementError>(
        [&] { const DistributedDataParallel ddp(block, mesh["dp"]); });
    EXPECT_THAT(message, HasSubstr("up.bias [24] Double [S(0)]"));
    EXPECT_THAT(message, HasSubstr("up.bias [24] Double [R]"));
  });
}

} // namespace
} // namespace weft::ddp
