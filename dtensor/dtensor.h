#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "dtensor/spec.h"

namespace weft::dtensor {

/// A DTensor is an at::Tensor whose values lie on the ranks of a mesh as its
/// spec says. Its sizes, strides and dtype are the whole tensor's, so code
/// written for one rank runs on it; ops on it compute with each rank's part
/// and communicate where they must. Below: how to make one and take it apart.
/// Source: torch/distributed/tensor/_api.py.

bool is_dtensor(const at::Tensor& tensor);
/// Throws: c10::ValueError if `tensor` is not a DTensor.
const DTensorSpec& spec_of(const at::Tensor& tensor);

struct FromLocalOptions {
  /// The whole tensor's sizes; without them every rank's part is taken to be
  /// of equal size.
  std::optional<std::vector<int64_t>> sizes = std::nullopt;
  /// The whole tensor's strides; without them dense, in the order of dims that
  /// the local tensor's have.
  std::optional<std::vector<int64_t>> strides = std::nullopt;
  /// Where the gradient of the local tensor is to lie; by default where the
  /// tensor does, with Partial replaced by Replicate.
  std::optional<Placements> grad_placements = std::nullopt;
  /// Compares all ranks' local sizes and dtype first (communicates).
  bool run_check = false;
};

/// Makes a DTensor of each rank's part, without communication. Differentiable.
/// Throws: c10::ValueError if the local sizes do not fit the global ones.
at::Tensor from_local(
    const at::Tensor& local,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const FromLocalOptions& options = {});

/// This rank's part: shares memory with the DTensor. Differentiable; the
/// gradient that arrives is taken to lie as `grad_placements` say (default:
/// as the tensor, with Partial replaced by Replicate).
at::Tensor to_local(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

/// The whole tensor on every rank. Differentiable.
/// Collective: all ranks of the mesh; blocks.
at::Tensor full_tensor(const at::Tensor& dtensor);

/// Moves a DTensor to other placements on its mesh; returns `dtensor` itself
/// where it already lies so. Differentiable, any number of times.
/// Collective: all ranks of the mesh; blocks. R to S and R to P move nothing.
/// Throws: c10::ValueError for R to P(product|min|max) of a value, or a Shard
/// of a dim that the tensor does not have.
at::Tensor redistribute(
    const at::Tensor& dtensor,
    const Placements& placements);

/// Distributes a whole tensor: rank `src_data_rank`'s values (a rank of each
/// mesh dim's group), or with nullopt each rank's own, which must be equal.
/// A leaf that keeps requires_grad.
/// Collective: all ranks of the mesh unless `src_data_rank` is nullopt.
at::Tensor distribute_tensor(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    std::optional<int64_t> src_data_rank = 0);

/// "DTensor [4, 8] Float [S(0)] on tp=2, local [2, 8]": never reads data.
std::string describe(const at::Tensor& tensor);

} // namespace weft::dtensor
