#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "mesh/device_mesh.h"
#include "tp/layout.h"

// What hooks of styles do to the tensors that go into a module and come out.

namespace weft::tp {

/// How one tensor is placed.
struct TensorLayout {
  /// How a plain tensor is taken to lie.
  Layout from = Replicate();
  /// Where it is brought; unset: it stays where it lies.
  std::optional<Layout> to = std::nullopt;
  /// As this rank's part, a plain tensor.
  bool use_local = false;
};

/// Collective: all ranks of the mesh, where values must move.
at::Tensor place_tensor(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const TensorLayout& layout);

/// Places the first tensor that dtensor::call() gives to `module`.
void place_first_input(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    TensorLayout layout);

/// Places the DTensors that `module` returns to dtensor::call().
void place_outputs(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    TensorLayout layout);

} // namespace weft::tp
