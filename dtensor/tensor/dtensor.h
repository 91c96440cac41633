#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/spec.h"

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
  /// of equal size, but for Shards of given sizes.
  std::optional<std::vector<int64_t>> sizes = std::nullopt;
  /// The whole tensor's strides; without them dense, in the order of dims that
  /// the local tensor's have.
  std::optional<std::vector<int64_t>> strides = std::nullopt;
  /// Where the gradient of the local tensor is to lie; by default where the
  /// tensor does, with Partial replaced by Replicate.
  std::optional<Placements> grad_placements = std::nullopt;
  /// First compares dtypes, sizes and placements of all ranks, and their values
  /// where they are to be replicas of each other (communicates): what differs
  /// is a c10::ValueError on every rank. PyTorch overwrites replicas instead.
  bool run_check = false;
};

/// Makes a DTensor of each rank's part, without communication. Differentiable.
/// Throws: c10::ValueError if the local sizes do not fit the global ones, or
/// reductions of kinds that do not commute wait on one tensor.
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

/// The whole tensor on every rank. Differentiable; the gradient that arrives is
/// taken to lie as `grad_placements` say (default: Replicate), e.g. Partial
/// where each rank uses the whole for its own part of a loss.
/// Collective: all ranks of the mesh; blocks.
at::Tensor full_tensor(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements = std::nullopt);

/// Moves a DTensor to other placements on its mesh; returns `dtensor` itself
/// where it already lies so. Differentiable, any number of times.
/// Collective: all ranks of the mesh; blocks. R to S and R to P move nothing.
/// Throws: c10::ValueError for anything but P(product) to P(product), for an
/// average of integers, a Shard of a dim that the tensor does not have or of
/// sizes that do not add up; the same on all ranks.
at::Tensor redistribute(
    const at::Tensor& dtensor,
    const Placements& placements);

/// Distributes a whole tensor: rank `src_data_rank`'s values (a rank of each
/// mesh dim's group), or with nullopt each rank's own, which must be equal. A
/// Partial then stands for exactly these values. A leaf that keeps
/// requires_grad; a DTensor that lies so already is returned.
/// Collective: all ranks of the mesh unless `src_data_rank` is nullopt; first
/// compares their tensors' shapes, dtypes and placements.
/// Throws: c10::ValueError on all ranks, before any value is sent, if those
/// differ, for what redistribute() refuses, a tensor that is no leaf, and a
/// rank that a mesh dim does not have.
at::Tensor distribute_tensor(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    std::optional<int64_t> src_data_rank = 0);

/// "DTensor [4, 8] Float [S(0)] on tp=2, local [2, 8]": never reads data.
std::string describe(const at::Tensor& tensor);

} // namespace weft::dtensor
