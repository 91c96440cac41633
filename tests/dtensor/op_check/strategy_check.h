#pragma once

#include <cstdint>
#include <vector>

#include "mesh/device_mesh.h"
#include "tests/dtensor/op_check/op_samples.h"
#include "tests/dtensor/op_check/report.h"

namespace weft::dtensor::check {

/// A mesh as each of its ranks sees it; nobody communicates.
struct Grid {
  explicit Grid(const std::vector<int64_t>& shape);

  std::vector<int64_t> shape;
  std::vector<mesh::DeviceMesh> meshes;
};

/// Takes the rule of `sample`'s op at its word: runs each strategy by hand on
/// each rank's parts and compares what they make with the op on the whole
/// tensors; sizes and strides too.
void check_strategies(const Sample& sample, const Grid& grid, Report& report);

} // namespace weft::dtensor::check
