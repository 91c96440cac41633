#include "tests/dtensor/op_check/one_rank.h"

#include <torch/torch.h>

#include "dtensor/random/random_state.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "tests/dtensor/parts.h"

namespace weft::dtensor::check {

bool wants_gradient(const at::Tensor& tensor) {
  return tensor.defined() &&
         (tensor.is_floating_point() || tensor.is_complex());
}

std::vector<at::Tensor> functionals(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> weights;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].requires_grad()) {
      weights.push_back(test::random(outputs[i].sizes(), 2000 + i)
                            .to(outputs[i].scalar_type()));
    } else {
      weights.emplace_back();
    }
  }
  return weights;
}

std::vector<at::Tensor> gradients(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& weights,
    const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> of;
  std::vector<at::Tensor> by;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (weights[i].defined()) {
      of.push_back(outputs[i]);
      by.push_back(weights[i]);
    }
  }
  return torch::autograd::grad(
      of,
      inputs,
      by,
      /*retain_graph=*/false,
      /*create_graph=*/false,
      /*allow_unused=*/true);
}

std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> list;
  for (const auto& tensor : tensors) {
    if (tensor.requires_grad()) {
      list.push_back(tensor);
    }
  }
  return list;
}

namespace {

// Random ops on DTensors draw the same numbers on every mesh, but not those
// that libtorch draws: a mesh of one rank tells them.
std::vector<at::Tensor> on_mesh_of_one(const Sample& sample) {
  const auto mesh = test::fake_line(0, 1);
  manual_seed(mesh, kRandomSeed);
  const auto arguments =
      map_tensors(sample.arguments, [&](const at::Tensor& t, size_t) {
        return test::distributed(t.clone(), mesh, {Replicate()});
      });
  std::vector<at::Tensor> wholes;
  for (const auto& output : call(sample.op, arguments)) {
    wholes.push_back(output.defined() ? dtensor_impl(output)->local() : output);
  }
  return wholes;
}

} // namespace

Expected on_one_rank(const Sample& sample) {
  if (is_random(sample.op)) {
    return {on_mesh_of_one(sample), {}, {}};
  }
  Expected expected{call(sample.op, cloned(sample.arguments)), {}, {}};
  if (is_inplace(sample.op.schema()) || !has_values(sample.op)) {
    return expected;
  }
  const auto arguments =
      map_tensors(sample.arguments, [](const at::Tensor& t, size_t) {
        return t.clone().requires_grad_(wants_gradient(t));
      });
  try {
    const auto outputs = call(sample.op, arguments);
    auto weights = functionals(outputs);
    expected.gradients =
        gradients(outputs, weights, leaves(tensors_of(arguments)));
    expected.weights = std::move(weights);
  } catch (const std::exception&) {
    // No derivative, or none of these inputs.
    expected.gradients.clear();
  }
  return expected;
}

} // namespace weft::dtensor::check
