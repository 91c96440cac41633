#include "tp/module_tensors.h"

#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::tp {

at::Tensor place_tensor(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const TensorLayout& layout) {
  if (!tensor.defined()) {
    return tensor;
  }
  auto placed = dtensor::is_dtensor(tensor)
                    ? tensor
                    : dtensor::from_local(tensor, mesh, layout.from.on(mesh));
  if (layout.to) {
    placed = dtensor::redistribute(placed, layout.to->on(mesh));
  }
  return layout.use_local ? dtensor::to_local(placed) : placed;
}

void place_first_input(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    TensorLayout layout) {
  dtensor::module_hooks(module).before.emplace_back(
      [mesh, layout = std::move(layout)](std::vector<at::Tensor>& inputs) {
        if (!inputs.empty()) {
          inputs[0] = place_tensor(inputs[0], mesh, layout);
        }
      });
}

void place_outputs(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    TensorLayout layout) {
  dtensor::module_hooks(module).after.emplace_back(
      [mesh, layout = std::move(layout)](std::vector<at::Tensor>& outputs) {
        for (auto& output : outputs) {
          if (output.defined() && dtensor::is_dtensor(output)) {
            output = place_tensor(output, mesh, layout);
          }
        }
      });
}

} // namespace weft::tp
