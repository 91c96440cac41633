#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::data_parallel {

/// A parameter or buffer and its fully qualified name.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Returns a module's parameters in registration order. A tied weight appears
/// once, by its first name.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
/// Returns a module's buffers in the same way.
std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);

/// Returns a DTensor's local tensor, or a plain tensor itself, detached,
/// sharing memory.
at::Tensor local_part(const at::Tensor& tensor);

/// Computes to = from / divisor, in one pass if both have the same dtype.
void copy_divided(const at::Tensor& to, const at::Tensor& from, double divisor);

/// Returns the slice of `mesh` without the dims of `dp`, or a mesh without dims
/// if there are no others.
mesh::DeviceMesh mesh_of_other_dims(
    const mesh::DeviceMesh& mesh,
    const mesh::DeviceMesh& dp);

} // namespace weft::data_parallel
