#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

namespace weft::dtensor {

/// A DTensor is an at::Tensor whose values are distributed over the ranks of a
/// mesh as its spec describes. Its sizes, strides and dtype are those of the
/// full tensor, so code for one rank works on it. Ops compute on each rank's
/// local tensor and communicate if needed. The functions below create and
/// convert DTensors.
/// Source: torch/distributed/tensor/_api.py.

bool is_dtensor(const at::Tensor& tensor);
/// Throws: c10::ValueError if `tensor` is not a DTensor.
const DTensorSpec& spec_of(const at::Tensor& tensor);

/// The options of from_local().
struct FromLocalOptions {
  /// The sizes of the full tensor. Without them every rank's local tensor is
  /// assumed to have the same size, except for Shards of given sizes.
  std::optional<std::vector<int64_t>> sizes = std::nullopt;
  /// The strides of the full tensor. Without them it is dense, with the local
  /// tensor's order of dims.
  std::optional<std::vector<int64_t>> strides = std::nullopt;
  /// The placements of the local tensor's gradient. The default is the
  /// tensor's, with Partial replaced by Replicate.
  std::optional<Placements> grad_placements = std::nullopt;
  /// First compares dtypes, sizes and placements of all ranks, and the values
  /// of replicas (communicates). A difference is a c10::ValueError on every
  /// rank. (PyTorch overwrites replicas instead.)
  bool run_check = false;
};

/// Creates a DTensor from each rank's local tensor, without communication.
/// Differentiable.
/// Throws: c10::ValueError if the local sizes do not match the global sizes, or
/// reductions on one tensor do not commute.
at::Tensor from_local(
    const at::Tensor& local,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const FromLocalOptions& options = {});

/// Returns this rank's local tensor, which shares memory with the DTensor.
/// Differentiable; an arriving gradient is assumed to have `grad_placements`
/// (default: the tensor's, with Partial replaced by Replicate).
at::Tensor to_local(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

/// Returns the full tensor on every rank. Differentiable; an arriving gradient
/// is assumed to have `grad_placements` (default: Replicate). Use Partial if
/// each rank uses the full tensor for its own part of a loss.
/// Collective: all ranks of the mesh; blocks.
at::Tensor full_tensor(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

/// Redistributes a DTensor to other placements on its mesh. Returns `dtensor`
/// itself if it already has them. Differentiable to any order.
/// Collective: all ranks of the mesh; blocks. R to S and R to P do not
/// communicate.
/// Throws: c10::ValueError, identical on all ranks, for a change to P(product)
/// from another placement, for an average of integers, and for a Shard of a dim
/// that the tensor does not have or of sizes that do not add up.
at::Tensor redistribute(
    const at::Tensor& dtensor,
    const Placements& placements);

/// Distributes a full tensor. In the group of each mesh dim, rank
/// `src_data_rank` sends its values. With nullopt nothing is sent: each rank
/// uses its own values, which must be equal. For a Partial, the reduction of
/// the local tensors gives exactly the full values. Returns a leaf that keeps
/// requires_grad; a DTensor that already has the placements is returned as it
/// is.
/// Collective: all ranks of the mesh unless `src_data_rank` is nullopt;
/// compares the shapes, dtypes and placements of all ranks first. Throws:
/// c10::ValueError on all ranks, before any value is sent, if those differ, if
/// redistribute() would throw, if the tensor is not a leaf, or if a mesh dim
/// does not have that rank.
at::Tensor distribute_tensor(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    std::optional<int64_t> src_data_rank = 0);

/// Returns "DTensor [4, 8] Float [S(0)] on tp=2, local [2, 8]". Never reads
/// data.
std::string describe(const at::Tensor& tensor);

} // namespace weft::dtensor
