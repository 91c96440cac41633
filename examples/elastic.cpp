// Elastic training: replica groups that go on when one of them is killed.
//
//   weftrun --nproc-per-node 3 --replica-size 1 --max-restarts 9 --
//     example_elastic 500 20
//
// trains 500 steps of at least 20 ms. Kill one of the processes: the others go
// on, and it comes back a second later. Each process prints the steps that it
// applies, and its weights at the end.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include <torch/torch.h>

#include "elastic/manager.h"
#include "elastic/pure_distributed_data_parallel.h"
#include "mesh/world.h"

namespace {

constexpr int64_t kBatch = 12;

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 1));
  }
  torch::nn::Linear first = nullptr;
  torch::nn::Linear second = nullptr;
};

} // namespace

int main(int argc, char** argv) {
  using namespace weft;
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 0;
  const std::chrono::milliseconds pause(argc > 2 ? std::atoll(argv[2]) : 0);
  torch::set_num_threads(1);
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  torch::optim::AdamW optimizer(net->parameters(), 0.01);
  elastic::Manager manager(mesh::World::from_env());
  manager.register_module("net", net);
  manager.register_optimizer("optimizer", optimizer);
  const elastic::PureDistributedDataParallel ddp(manager, net);
  while (manager.step() < steps) {
    auto step = manager.begin_step();
    optimizer.zero_grad();
    const auto [begin, end] = step.share(kBatch);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(
        static_cast<uint64_t>(step.number() + 100));
    const auto x = at::randn({kBatch, 8}, generator).slice(0, begin, end);
    const auto y = net->second(torch::tanh(net->first(x)));
    const auto loss = (y - x.sum(1, true)).pow(2).sum() / kBatch;
    loss.backward();
    std::this_thread::sleep_for(pause);
    if (step.commit()) {
      optimizer.step();
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
  double sum = 0;
  for (const auto& parameter : net->parameters()) {
    sum += parameter.abs().sum().item<double>();
  }
  std::printf("weights %.9f pid %d\n", sum, static_cast<int>(getpid()));
}
