#include "tp/expert_parallel.h"

#include <torch/torch.h>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor.h"
#include "dtensor/module_call.h"

namespace weft::tp {

ParallelStyle ExpertParallel(ExpertParallelOptions options) {
  return ParallelStyle([options](
                           torch::nn::Module& module,
                           const mesh::DeviceMesh& mesh,
                           const std::string& path) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      dtensor::distribute_parameter(module, item.key(), mesh, {Shard(0)}, path);
    }
    if (!options.output_layouts) {
      return;
    }
    dtensor::module_hooks(module).after.push_back(
        [layout = *options.output_layouts](const at::Tensor& output) {
          return dtensor::redistribute(output, {layout});
        });
  });
}

} // namespace weft::tp
