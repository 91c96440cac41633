#pragma once

#include <map>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::dtensor {

/// Tensors by fully qualified name. They share memory with their origin, so
/// that loading into them loads the origin.
using StateDict = std::map<std::string, at::Tensor>;

/// Returns `tensor` as a DTensor on `mesh`. On the dims of the tensor's own
/// mesh it keeps its placements; on the others it is Replicate, and a plain
/// tensor is Replicate on all of them. The result shares memory and is not part
/// of a graph. Not collective. Throws: c10::ValueError if the tensor's mesh is
/// not a slice of `mesh`.
at::Tensor on_mesh(const at::Tensor& tensor, const mesh::DeviceMesh& mesh);

/// Returns the smallest slice of the root of `mesh` that contains `mesh` and
/// the meshes of all DTensor parameters and buffers of `module`.
/// Throws: c10::ValueError if a parameter is on a mesh with another root.
mesh::DeviceMesh joint_mesh(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh);

/// Returns the parameters and buffers of `module` as DTensors on `mesh`, except
/// the names in `ignore` (e.g. computed buffers). Tied parameters appear under
/// each of their names.
/// Source: torch.distributed.checkpoint.state_dict.get_model_state_dict.
StateDict module_state_dict(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const std::set<std::string>& ignore = {});

} // namespace weft::dtensor
