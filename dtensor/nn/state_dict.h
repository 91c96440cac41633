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

/// Tensors by fully qualified name. They share memory with what they were
/// taken from, so that loading into them loads that.
using StateDict = std::map<std::string, at::Tensor>;

/// `tensor` seen on `mesh`, of which its own mesh is a slice: where it was,
/// and Replicate over the mesh dims that it did not have. Plain tensors are
/// replicated everywhere. Shares memory, no part of a graph; not collective.
/// Throws: c10::ValueError if its mesh is no slice of `mesh`.
at::Tensor on_mesh(const at::Tensor& tensor, const mesh::DeviceMesh& mesh);

/// The smallest slice of `mesh`'s root that has `mesh` and the meshes of all
/// DTensor parameters and buffers of `module` as slices.
/// Throws: c10::ValueError if a parameter lies on a mesh of another root.
mesh::DeviceMesh joint_mesh(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh);

/// Parameters and buffers of `module`, all as DTensors on `mesh`; without the
/// names in `ignore`, e.g. buffers that are computed and not learned. Tied
/// parameters come under each of their names.
/// Source: torch.distributed.checkpoint.state_dict.get_model_state_dict.
StateDict module_state_dict(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh,
    const std::set<std::string>& ignore = {});

} // namespace weft::dtensor
