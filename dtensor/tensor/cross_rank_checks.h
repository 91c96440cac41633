#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::dtensor {

/// Returns the global sizes if every rank has a part of `local_sizes`, or of
/// the rows given by a Shard of given sizes.
std::vector<int64_t> infer_global_sizes(
    c10::IntArrayRef local_sizes,
    const DTensorSpec& spec);

/// Throws: c10::ValueError for tensors that a DTensor cannot have: undefined,
/// sparse, quantized and nested ones.
void check_is_dense(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const char* op);

/// Checks that the reductions of a tensor commute; sums and averages may be
/// mixed.
/// Throws: c10::ValueError otherwise.
void check_no_mixed_partials(
    const Placements& placements,
    const mesh::DeviceMesh& mesh,
    const char* op);

/// The checks of distribute_tensor() before it sends a tensor.
/// Collective: all ranks of `mesh`, whatever they pass; blocks.
/// Throws: c10::ValueError on every rank unless sizes, dtypes, placements and
/// kinds of tensor agree.
void check_full_tensors_match(
    const at::Tensor& whole,
    const mesh::DeviceMesh& mesh,
    const Placements& placements);

/// The checks of from_local() with FromLocalOptions::run_check: compares
/// dtypes, sizes, placements, and along replicated mesh dims the values of all
/// ranks.
/// Collective: all ranks of `mesh`, whatever they pass; blocks.
/// Throws: c10::ValueError on every rank, naming the first that differs.
void check_local_tensors_match(
    const at::Tensor& local,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const FromLocalOptions& options);

} // namespace weft::dtensor
