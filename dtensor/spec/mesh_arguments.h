#pragma once

#include <string>

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"

// What functions that take a mesh and placements share.

namespace weft::dtensor {

/// Returns the rank and its place on `mesh`, for messages.
inline mesh::ErrorContext context_of(const mesh::DeviceMesh& mesh) {
  return {mesh.describe_rank()};
}

/// Returns `placements` with non-negative tensor dims, for a tensor of `ndim`
/// dims.
inline Placements normalized(const Placements& placements, int64_t ndim) {
  Placements result;
  for (const auto& placement : placements) {
    result.push_back(placement.normalized(ndim));
  }
  return result;
}

} // namespace weft::dtensor

namespace weft::mesh {
class DeviceMesh;
} // namespace weft::mesh

namespace weft::dtensor {

/// Returns "dp=2 vs tp=2", for messages about tensors on two meshes. If both
/// look the same, adds how they differ.
std::string describe_meshes(
    const mesh::DeviceMesh& one,
    const mesh::DeviceMesh& other);

} // namespace weft::dtensor
