#pragma once

#include <utility>
#include <vector>

#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "tests/dtensor/parts.h"
#include "tests/support/run_ranks.h"

// What tests need on each of several ranks.

namespace weft::dtensor::test {

inline const Placement kR = Replicate();

/// All ranks in one mesh dim "tp".
inline mesh::DeviceMesh line(const weft::test::RankContext& self) {
  return self.mesh({self.world_size}, {"tp"});
}

inline at::Tensor local_of(const at::Tensor& dtensor) {
  return dtensor_impl(dtensor)->local();
}

/// This rank's part of `whole`.
inline at::Tensor own_part(
    const at::Tensor& whole,
    const Placements& placements,
    const mesh::DeviceMesh& mesh) {
  return cut_all(whole, placements, mesh.shape())[mesh.rank()];
}

inline FromLocalOptions with_sizes(std::vector<int64_t> sizes) {
  FromLocalOptions options;
  options.sizes = std::move(sizes);
  return options;
}

} // namespace weft::dtensor::test
