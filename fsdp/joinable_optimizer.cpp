#include "fsdp/joinable_optimizer.h"

#include <memory>
#include <utility>

#include "mesh/error/error.h"

namespace weft::fsdp {
namespace {

class Step : public data_parallel::JoinHook {
 public:
  Step(
      const std::function<void()>& step,
      const FullyShardedDataParallelBase& model)
      : step_(step), model_(model) {}

  void main_hook() override {
    if (model_.has_reduced_in_join()) {
      step_();
    }
  }

 private:
  const std::function<void()>& step_;
  const FullyShardedDataParallelBase& model_;
};

} // namespace

JoinableOptimizer::JoinableOptimizer(
    torch::optim::Optimizer& optimizer,
    FullyShardedDataParallelBase& model)
    : JoinableOptimizer(
          [&optimizer] {
            optimizer.step();
            optimizer.zero_grad();
          },
          model) {}

JoinableOptimizer::JoinableOptimizer(
    std::function<void()> step,
    FullyShardedDataParallelBase& model)
    : step_(std::move(step)), model_(model) {}

std::shared_ptr<data_parallel::JoinHook> JoinableOptimizer::join_hook(
    const data_parallel::JoinKwargs& /*kwargs*/) {
  WEFT_CHECK(
      model_.join_config().enable && !join_config().is_first_joinable,
      "join",
      mesh::ErrorContext{"JoinableOptimizer"},
      "a JoinableOptimizer must come after the FullyShardedDataParallel that "
      "it was created with. Pass the wrapped model first, then the optimizer.");
  model_.set_join_has_optimizer();
  return std::make_shared<Step>(step_, model_);
}

c10::Device JoinableOptimizer::join_device() const {
  return model_.join_device();
}

mesh::Communicator JoinableOptimizer::join_process_group() const {
  return model_.join_process_group();
}

mesh::DeviceMesh JoinableOptimizer::join_model_parallel_mesh() const {
  return model_.join_model_parallel_mesh();
}

} // namespace weft::fsdp
