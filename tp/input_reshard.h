#pragma once

#include <cstdint>
#include <optional>

#include <torch/nn/module.h>

#include "mesh/device_mesh.h"

namespace weft::tp {

/// From now on, what calls of `module` through dtensor::call() save for
/// backward lies cut along `input_reshard_dim` over the mesh, and is gathered
/// where backward asks for it: without sequence parallelism the inputs of
/// column-parallel layers are the same on all ranks. Cut are DTensors that are
/// whole on every rank, but for parameters; PyTorch also cuts plain tensors,
/// which here may be parts that differ from rank to rank. std::nullopt changes
/// nothing.
/// Collective: all ranks of the mesh, in backward.
/// Throws: c10::Error at the call if another autograd engine is installed.
/// Source: torch/distributed/tensor/parallel/input_reshard.py.
void input_reshard(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    std::optional<int64_t> input_reshard_dim = std::nullopt);

} // namespace weft::tp
