#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "mesh/device_mesh.h"
#include "tp/layout.h"

// What hooks of styles do to the tensors that go into a module and come out.

namespace weft::tp {

/// The placement of one tensor.
struct TensorLayout {
  /// The assumed placement of a plain tensor.
  Layout from = Replicate();
  /// The placement to which it is redistributed. Unset means that it is not
  /// redistributed.
  std::optional<Layout> to = std::nullopt;
  /// Passes this rank's local tensor instead of a DTensor.
  bool use_local = false;
};

/// Places a tensor.
/// Collective: all ranks of the mesh, if values must be communicated.
at::Tensor place_tensor(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const TensorLayout& layout);

/// Places the first tensor argument of dtensor::call() for `module`.
void place_first_input(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    TensorLayout layout);

/// Places the DTensors that `module` returns from dtensor::call().
void place_outputs(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    TensorLayout layout);

} // namespace weft::tp
