// Uneven inputs: a user-defined Joinable together with DistributedDataParallel.
//
//   weftrun --nproc-per-node 3 -- example_join
//
// Rank r has 4 + 2 r batches. SampleCounter counts the samples of each
// iteration over all ranks. This is a collective, in which ranks without
// batches must take part.
#include <cstdio>
#include <memory>

#include <torch/torch.h>

#include <weft/data_parallel/join/join.h>
#include <weft/ddp/distributed_data_parallel.h>
#include <weft/ddp/joinable_optimizer.h>
#include <weft/mesh/device_mesh.h>
#include <weft/mesh/world.h>

namespace {

namespace data_parallel = weft::data_parallel;
namespace ddp = weft::ddp;
namespace mesh = weft::mesh;

class SampleCounter : public data_parallel::Joinable {
 public:
  explicit SampleCounter(mesh::DeviceMesh dp) : dp_(std::move(dp)) {}

  /// Adds the samples of one iteration. Collective: all replicas.
  void count(int64_t samples) {
    data_parallel::Join::notify_join_context(*this);
    add(samples);
  }
  int64_t total() const { return total_; }

  std::shared_ptr<data_parallel::JoinHook> join_hook(const data_parallel::JoinKwargs&) override {
    class Hook : public data_parallel::JoinHook {
     public:
      explicit Hook(SampleCounter& counter) : counter_(counter) {}
      void main_hook() override { counter_.add(0); }

     private:
      SampleCounter& counter_;
    };
    return std::make_shared<Hook>(*this);
  }
  c10::Device join_device() const override { return at::kCPU; }
  mesh::Communicator join_process_group() const override {
    return dp_.group(int64_t{0});
  }

 private:
  void add(int64_t samples) {
    const auto sum = at::full({1}, samples, at::kLong);
    dp_.group(int64_t{0}).all_reduce(sum).wait();
    total_ += sum.item<int64_t>();
  }

  mesh::DeviceMesh dp_;
  int64_t total_ = 0;
};

} // namespace

int main() {
  const auto world = mesh::World::from_env();
  const auto dp = mesh::DeviceMesh::create(world, {world.world_size()}, {"dp"});
  torch::manual_seed(0);
  const torch::nn::Linear linear(8, 1);
  ddp::DistributedDataParallel<torch::nn::LinearImpl> model(linear, dp);
  torch::optim::SGD optimizer(
      linear->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  ddp::JoinableOptimizer joined_optimizer(optimizer, model);
  SampleCounter counter(dp);

  int64_t own = 0;
  data_parallel::Join join({&model, &joined_optimizer, &counter});
  join.run([&] {
    for (int64_t i = 0; i < 4 + 2 * world.rank(); ++i) {
      const auto inputs = at::randn({16, 8});
      optimizer.zero_grad();
      (model(inputs) - inputs.sum(1, true)).square().mean().backward();
      optimizer.step();
      counter.count(inputs.size(0));
      own += inputs.size(0);
    }
  });
  std::printf(
      "rank %ld: %ld samples here, %ld counted\n",
      static_cast<long>(world.rank()),
      static_cast<long>(own),
      static_cast<long>(counter.total()));
  return 0;
}
