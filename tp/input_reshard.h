#pragma once

#include <cstdint>
#include <optional>

#include <torch/nn/module.h>

#include "mesh/device_mesh.h"

namespace weft::tp {

/// Saves memory of a module without sequence parallelism, where all ranks would
/// keep identical inputs of column-parallel layers for backward. When `module`
/// is called through dtensor::call(), each tensor that autograd saves for
/// backward is sharded over the mesh along `input_reshard_dim`. It is gathered
/// when backward uses it. Only replicated DTensors are sharded; parameters are
/// not. PyTorch also shards plain tensors, which in Weft may differ between
/// ranks. With std::nullopt this function does nothing.
/// Collective: all ranks of the mesh, in backward.
/// Throws: c10::Error, when `module` is called, if another autograd engine is
/// installed.
/// Source: torch/distributed/tensor/parallel/input_reshard.py.
void input_reshard(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    std::optional<int64_t> input_reshard_dim = std::nullopt);

} // namespace weft::tp
