#pragma once

#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"
#include "mesh/error/error.h"

// What functions that take a mesh and placements share.

namespace weft::dtensor {

/// The rank and its place on `mesh`, for messages.
inline mesh::ErrorContext context_of(const mesh::DeviceMesh& mesh) {
  return {mesh.describe_rank()};
}

/// `placements` of a tensor of `ndim` dims, none of which counts from the end.
inline Placements normalized(const Placements& placements, int64_t ndim) {
  Placements result;
  for (const auto& placement : placements) {
    result.push_back(placement.normalized(ndim));
  }
  return result;
}

} // namespace weft::dtensor
