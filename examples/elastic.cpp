// Elastic training: replica groups that continue when one of them is killed.
//
//   weftrun --nproc-per-node 3 --replica-size 1 --max-restarts 9 --
//     example_elastic 500 20
//
// trains 500 steps of at least 20 ms. Kill one of the processes: the other
// groups continue, and weftrun restarts the killed one a second later. Each
// group prints the steps that it applies, and its weights at the end. With
// --nproc-per-node 6 --replica-size 2 the model is divided over the two ranks
// of each group.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include <torch/torch.h>

#include <weft/dtensor/tensor/dtensor.h>
#include <weft/elastic/manager.h>
#include <weft/elastic/pure_distributed_data_parallel.h>
#include <weft/mesh/device_mesh.h>
#include <weft/mesh/world.h>
#include <weft/tp/parallelize_module.h>

namespace {

constexpr int64_t kBatch = 12;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = second(torch::tanh(first(x)));
    return weft::dtensor::is_dtensor(y) ? weft::dtensor::to_local(y) : y;
  }
  torch::nn::Linear first = nullptr;
  torch::nn::Linear second = nullptr;
};

double sum_of_weights(const Net& net) {
  double sum = 0;
  for (const auto& parameter : net.parameters()) {
    const auto whole = weft::dtensor::is_dtensor(parameter)
                           ? weft::dtensor::full_tensor(parameter)
                           : parameter;
    sum += whole.abs().sum().item<double>();
  }
  return sum;
}

} // namespace

int main(int argc, char** argv) {
  using namespace weft;
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 0;
  const std::chrono::milliseconds pause(argc > 2 ? std::atoll(argv[2]) : 0);
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const auto world = mesh::World::from_env();
  auto net = std::make_shared<Net>();
  if (world.world_size() > 1) {
    tp::parallelize_module(
        *net,
        mesh::DeviceMesh::create(world, {world.world_size()}, {"tp"}),
        {{"first", tp::ColwiseParallel()}, {"second", tp::RowwiseParallel()}});
  }
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  elastic::Manager manager(world);
  manager.register_module("net", net);
  manager.register_optimizer("optimizer", optimizer, net);
  const elastic::PureDistributedDataParallel ddp(manager, net);
  while (manager.step() < steps) {
    auto step = manager.begin_step();
    optimizer.zero_grad();
    const auto [begin, end] = step.share(kBatch);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(
        static_cast<uint64_t>(step.number() + 100));
    const auto x = at::randn({kBatch, 8}, generator).slice(0, begin, end);
    const auto loss = (net->forward(x) - x.sum(1, true)).pow(2).sum() / kBatch;
    loss.backward();
    std::this_thread::sleep_for(pause);
    if (!step.commit()) {
      continue;
    }
    optimizer.step();
    if (world.rank() == 0) {
      std::printf(
          "step %lld pid %d samples %lld to %lld groups %lld epochs %lld\n",
          static_cast<long long>(step.number()),
          static_cast<int>(getpid()),
          static_cast<long long>(begin),
          static_cast<long long>(end),
          static_cast<long long>(step.groups()),
          static_cast<long long>(manager.epochs()));
      std::fflush(stdout);
    }
  }
  const double sum = sum_of_weights(*net);
  if (world.rank() == 0) {
    std::printf("weights %.9f pid %d\n", sum, static_cast<int>(getpid()));
  }
}
