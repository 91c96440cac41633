#pragma once

#include <string>

#include <torch/nn/module.h>

#include "dtensor/placement.h"
#include "mesh/device_mesh.h"

namespace weft::tp {

/// Makes a module's parameter lie as `placements` say. A DTensor (built inside
/// DeferredInit) changes in place; a plain one is replaced in the module's
/// table and in `member`, which must be what forward() reads.
/// Collective: all ranks of the mesh for plain parameters.
/// Throws: c10::ValueError if the parameter is plain and `module` is none of
/// libtorch's own types.
void distribute_parameter(
    torch::nn::Module& module,
    const std::string& name,
    at::Tensor& member,
    const mesh::DeviceMesh& mesh,
    const dtensor::Placements& placements,
    const std::string& path);

} // namespace weft::tp
