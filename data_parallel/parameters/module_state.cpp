#include "data_parallel/parameters/module_state.h"

#include <unordered_set>

#include <ATen/ops/div.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/module.h>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::data_parallel {
namespace {

std::vector<NamedTensor> first_of_each(
    const torch::OrderedDict<std::string, at::Tensor>& named) {
  std::vector<NamedTensor> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : named) {
    if (item.value().defined() &&
        seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.push_back({item.key(), item.value()});
    }
  }
  return result;
}

} // namespace

std::vector<NamedTensor> parameters_of(const torch::nn::Module& module) {
  return first_of_each(module.named_parameters());
}

std::vector<NamedTensor> buffers_of(const torch::nn::Module& module) {
  return first_of_each(module.named_buffers());
}

at::Tensor local_part(const at::Tensor& tensor) {
  const auto* impl = dtensor::dtensor_impl(tensor);
  return impl ? impl->local() : tensor.detach();
}

void copy_divided(
    const at::Tensor& to,
    const at::Tensor& from,
    double divisor) {
  if (divisor == 1.0) {
    to.copy_(from);
  } else if (to.scalar_type() == from.scalar_type()) {
    // A wrapped number does not change the dtype of the result.
    auto operand = at::scalar_tensor(divisor, at::kDouble);
    operand.unsafeGetTensorImpl()->set_wrapped_number(true);
    auto out = to;
    at::div_out(out, from, operand);
  } else {
    to.copy_(from);
    to.div_(divisor);
  }
}

mesh::DeviceMesh mesh_of_other_dims(
    const mesh::DeviceMesh& mesh,
    const mesh::DeviceMesh& dp) {
  std::vector<std::string> dims;
  for (const auto& name : mesh.mesh_dim_names()) {
    if (!dp.has_mesh_dim(name)) {
      dims.push_back(name);
    }
  }
  return dims.empty() ? mesh::DeviceMesh() : mesh.slice(dims);
}

} // namespace weft::data_parallel
