#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/tensor/dtensor.h"
#include "mesh/device_mesh.h"

namespace weft::dtensor::test {

/// Rank `rank`'s view of a 1-D mesh "tp" of `size` ranks that communicate
/// nothing.
mesh::DeviceMesh fake_line(int64_t rank, int64_t size);
/// Rank `rank`'s view of a mesh of any shape, likewise.
mesh::DeviceMesh fake_mesh(
    int64_t rank,
    std::vector<int64_t> shape,
    std::vector<std::string> names);

/// What each of `n` ranks holds of `whole` under `placement`; a Partial's
/// terms are random ones that reduce to `whole`.
std::vector<at::Tensor>
cut(const at::Tensor& whole, const Placement& placement, int64_t n);

/// The whole that parts under `placement` stand for. Replicated parts that
/// differ, shards of wrong sizes, and rows that are not held once fail the
/// test.
at::Tensor join(
    const std::vector<at::Tensor>& parts,
    const Placement& placement,
    c10::IntArrayRef sizes);

/// Returns the parts for a mesh of any number of dims and any placements: one
/// part per rank, row-major. Rows are split by dtensor/spec/dim_shards.h, which
/// local_ranges_test checks; terms of an outer Partial are split in those of an
/// inner one.
std::vector<at::Tensor> cut_all(
    const at::Tensor& whole,
    c10::ArrayRef<Placement> placements,
    c10::IntArrayRef mesh_shape);
at::Tensor join_all(
    c10::ArrayRef<at::Tensor> parts,
    c10::ArrayRef<Placement> placements,
    c10::IntArrayRef mesh_shape,
    c10::IntArrayRef sizes);

/// Numbers that depend on `seed` alone: tests on several threads cannot share
/// torch's generator.
at::Tensor random(
    c10::IntArrayRef sizes,
    uint64_t seed,
    at::ScalarType dtype = at::kDouble);

/// distribute_tensor() of a tensor that every rank has, without
/// communication.
at::Tensor distributed(
    const at::Tensor& whole,
    const mesh::DeviceMesh& mesh,
    const Placements& placements);

/// Expects close values; shows both sizes and the largest difference.
void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double tolerance,
    std::string_view what);

} // namespace weft::dtensor::test
