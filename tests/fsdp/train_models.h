#pragma once

#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/distributed_data_parallel.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "fsdp/fully_sharded_data_parallel.h"
#include "tests/fsdp/models.h"

namespace weft::fsdp {

constexpr int kSteps = 4;

inline std::vector<at::Tensor> whole_weights(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  for (const auto& item : module.named_parameters()) {
    result.push_back(dtensor::full_tensor(item.value().detach()).clone());
  }
  return result;
}

inline torch::optim::AdamW adamw(const torch::nn::Module& module) {
  return torch::optim::AdamW(
      module.parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.1));
}

template <class Parallel>
std::vector<double> train(
    Parallel& model,
    torch::optim::Optimizer& optimizer,
    const ModelCase& each,
    int64_t rank,
    int micro_batches) {
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < micro_batches; ++i) {
      const auto run = [&] {
        auto loss = model(each.input(step * 10 + i, rank)).pow(2).mean() /
                    micro_batches;
        loss.backward();
        losses.push_back(
            dtensor::full_tensor(loss.detach()).template item<double>());
      };
      if (i + 1 < micro_batches) {
        const auto own_only = model.no_sync();
        run();
      } else {
        run();
      }
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

inline void expect_same_bits(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (size_t i = 0; i < found.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(found.weights[i], expected.weights[i]))
        << "parameter " << i << " differs by "
        << (found.weights[i] - expected.weights[i]).abs().max();
  }
}

inline std::unique_ptr<FullyShardedDataParallel<TestModel>> shard(
    const std::shared_ptr<TestModel>& module,
    const mesh::DeviceMesh& mesh,
    const FullyShardOptions& options = {},
    const ScheduleOptions& schedule = {}) {
  for (auto* unit : module->units()) {
    fully_shard(*unit, mesh, options);
  }
  auto model = std::make_unique<FullyShardedDataParallel<TestModel>>(
      module, mesh, options, schedule);
  dtensor::materialize(*module, 1);
  return model;
}

inline void expect_close(
    const std::vector<at::Tensor>& found,
    const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-5, 1e-6)) << i;
  }
}

} // namespace weft::fsdp
