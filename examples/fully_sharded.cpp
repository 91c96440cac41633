// Trains one model twice from the same weights and compares the results. One
// run has every parameter on every rank. In the other one each rank holds only
// its rows.
//
//   weftrun --nproc-per-node 4 -- build/bin/example_fully_sharded
#include <cstdio>

#include <torch/torch.h>

#include <weft/ddp/distributed_data_parallel.h>
#include <weft/dtensor/init/deferred_init.h>
#include <weft/dtensor/tensor/dtensor.h>
#include <weft/fsdp/fully_sharded_data_parallel.h>
#include <weft/mesh/world.h>

using namespace weft;
using torch::nn::Functional, torch::nn::Linear, torch::nn::Sequential;

Sequential build() {
  const dtensor::DeferredInit no_values_yet;
  return Sequential(
      Linear(64, 100),
      Functional(torch::relu),
      Linear(100, 100),
      Linear(100, 70),
      // An in-place op on a view of the previous layer's output.
      Functional([](const at::Tensor& x) {
        return x.view({-1, 70}).mul_(2);
      }),
      Linear(70, 70),
      Linear(70, 31),
      Linear(31, 10));
}

template <class Model>
std::vector<at::Tensor> train(Model& model, int64_t rank) {
  torch::optim::AdamW optimizer(model.module().parameters(), /*lr=*/1e-2);
  for (int64_t step = 0; step < 20; ++step) {
    const auto x = at::sin(at::arange(16 * 64) * 0.7 + step + 100 * rank);
    model(x.view({16, 64})).pow(2).mean().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> whole;
  for (const auto& parameter : model.module().parameters()) {
    whole.push_back(dtensor::full_tensor(parameter.detach()).clone());
  }
  return whole;
}

int main() {
  const auto world = mesh::World::from_env();
  const auto dp =
      mesh::DeviceMesh::create(world, {world.world_size()}, {"dp_shard"});

  auto replicated = build();
  dtensor::materialize(*replicated, /*seed=*/1);
  ddp::DistributedDataParallel ddp(replicated, dp);
  const auto expected = train(ddp, world.rank());

  auto sharded = build();
  for (const auto& module : *sharded) {
    if (!module.ptr()->parameters().empty()) {
      fsdp::fully_shard(*module.ptr(), dp);
    }
  }
  dtensor::materialize(*sharded, /*seed=*/1);
  fsdp::FullyShardedDataParallel fsdp(sharded, dp);
  const auto found = train(fsdp, world.rank());

  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest =
        std::max(largest, (found[i] - expected[i]).abs().max().item<double>());
  }
  if (world.rank() == 0) {
    std::printf("largest difference: %g\n", largest);
  }
  return largest == 0 ? 0 : 1;
}
