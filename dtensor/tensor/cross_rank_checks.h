#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::dtensor {

/// The whole's sizes if every rank has a part of `local_sizes`, or of the rows
/// that a Shard of given sizes says.
std::vector<int64_t> infer_global_sizes(
    c10::IntArrayRef local_sizes,
    const DTensorSpec& spec);

/// Throws: c10::ValueError for what no DTensor can have as values: undefined,
/// sparse, quantized and nested tensors.
void check_is_dense(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const char* op);

/// Reductions of several kinds that wait on one tensor would have to be taken
/// in one order. Sums and averages may be mixed.
/// Throws: c10::ValueError.
void check_no_mixed_partials(
    const Placements& placements,
    const mesh::DeviceMesh& mesh,
    const char* op);

/// What distribute_tensor() does before it sends a whole tensor.
/// Collective: all ranks of `mesh`, whatever they give; blocks.
/// Throws: c10::ValueError on every rank unless sizes, dtypes, placements and
/// what kinds of tensor they are agree.
void check_full_tensors_match(
    const at::Tensor& whole,
    const mesh::DeviceMesh& mesh,
    const Placements& placements);

/// What from_local() does for FromLocalOptions::run_check: compares dtypes,
/// sizes, placements and, along mesh dims that replicate, values of all ranks.
/// Collective: all ranks of `mesh`, whatever they give; blocks.
/// Throws: c10::ValueError on every rank, naming the first that differs.
void check_local_tensors_match(
    const at::Tensor& local,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const FromLocalOptions& options);

} // namespace weft::dtensor
