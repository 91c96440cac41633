#include "ddp/joinable_optimizer.h"

#include "ddp/zero/zero_redundancy_optimizer.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

class SharedState : public data_parallel::JoinHook {
 public:
  SharedState(
      torch::optim::Optimizer& optimizer,
      DistributedDataParallelBase& ddp)
      : optimizer_(optimizer), ddp_(ddp) {}

  void post_hook(bool) override { ddp_.sync_joinable_optimizer(optimizer_); }

 private:
  torch::optim::Optimizer& optimizer_;
  DistributedDataParallelBase& ddp_;
};

} // namespace

JoinableOptimizer::JoinableOptimizer(
    torch::optim::Optimizer& optimizer,
    DistributedDataParallelBase& ddp)
    : optimizer_(optimizer), ddp_(ddp) {
  WEFT_CHECK(
      dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer) == nullptr,
      "join",
      mesh::ErrorContext{"JoinableOptimizer"},
      "a ZeroRedundancyOptimizer is itself a joinable, because its state is "
      "sharded. Pass it to the Join directly.");
}

std::shared_ptr<data_parallel::JoinHook> JoinableOptimizer::join_hook(
    const data_parallel::JoinKwargs&) {
  WEFT_CHECK(
      ddp_.join_config().enable && !join_config().is_first_joinable,
      "join",
      mesh::ErrorContext{"JoinableOptimizer"},
      "a JoinableOptimizer must come after the DistributedDataParallel that it "
      "was created with. Pass the wrapped model first, then the optimizer.");
  return std::make_shared<SharedState>(optimizer_, ddp_);
}

c10::Device JoinableOptimizer::join_device() const {
  return ddp_.join_device();
}

mesh::Communicator JoinableOptimizer::join_process_group() const {
  return ddp_.join_process_group();
}

mesh::DeviceMesh JoinableOptimizer::join_model_parallel_mesh() const {
  return ddp_.join_model_parallel_mesh();
}

} // namespace weft::ddp
