#include "elastic/pure_distributed_data_parallel.h"

#include <torch/nn/module.h>

#include "data_parallel/parameters/module_state.h"

namespace weft::elastic {

PureDistributedDataParallel::PureDistributedDataParallel(
    Manager& manager,
    const std::shared_ptr<torch::nn::Module>& module) {
  for (const auto& parameter : module->named_parameters()) {
    const auto& tensor = parameter.value();
    if (!tensor.requires_grad()) {
      continue;
    }
    hooks_.emplace_back(
        tensor,
        tensor.register_hook(
            [&manager, name = parameter.key()](const at::Tensor& gradient) {
              // Autograd may also use the gradient's memory for other tensors.
              auto sum = gradient.clone();
              // The sum of Partial gradients is Partial, so local tensors can
              // be added.
              manager.all_reduce(data_parallel::local_part(sum), name);
              return sum;
            }));
  }
}

PureDistributedDataParallel::~PureDistributedDataParallel() {
  for (const auto& [tensor, hook] : hooks_) {
    tensor.remove_hook(hook);
  }
}

} // namespace weft::elastic
