#pragma once

#include <cstdint>
#include <optional>

#include <torch/nn/module.h>

#include "mesh/device_mesh.h"

namespace weft::tp {

/// Shards the tensors that calls of `module` through dtensor::call() save for
/// backward along `input_reshard_dim` over the mesh, and gathers them when
/// backward needs them: without sequence parallelism the inputs of
/// column-parallel layers are identical on all ranks. Only replicated DTensors
/// are sharded; parameters are not. PyTorch also shards plain tensors, which in
/// Weft may differ between ranks. std::nullopt disables it.
/// Collective: all ranks of the mesh, in backward.
/// Throws: c10::Error at the call if another autograd engine is installed.
/// Source: torch/distributed/tensor/parallel/input_reshard.py.
void input_reshard(
    torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    std::optional<int64_t> input_reshard_dim = std::nullopt);

} // namespace weft::tp
