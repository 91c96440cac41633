#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace weft::ddp {

/// A number, e.g. a hash of a tensor, of which other ranks have copies.
struct ReplicatedHash {
  int64_t value = 0;
  /// Those along these dims of the mesh, a bit each: bit 0 for mesh dim 0.
  uint32_t mesh_dims = 0;
};

/// All dims of a mesh.
uint32_t all_mesh_dims(const mesh::DeviceMesh& mesh);
/// Along which dims of the root of `dp` ranks have the same as this one: those
/// of `dp`, and of a DTensor on a slice of that root those where it is
/// Replicate.
uint32_t replicated_mesh_dims(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& dp);

/// Whether all copies are equal: 24 bytes over each dim of the mesh, and 8 more
/// over some if a number is copied along a dim but not along one before it. In
/// an imagined world they are.
/// Collective: all ranks of `mesh`, a root, the same list but for values;
/// blocks.
bool replicas_match(
    const std::vector<ReplicatedHash>& numbers,
    const mesh::DeviceMesh& mesh);

/// The first number of a list whose copies differ, and who is to blame. World
/// ranks, ascending; copies that are all equal are in none of the lists.
struct ReplicaMismatch {
  size_t index = 0;
  /// Have what most of the copies have, at least two.
  std::vector<int64_t> majority_ranks;
  /// Have something else.
  std::vector<int64_t> mismatched_ranks;
  /// Hold copies of which no value is the most frequent, e.g. two copies.
  std::vector<int64_t> tied_ranks;
  /// The number's value by place in mesh.ranks().
  std::vector<int64_t> values;
};

/// Where replicas_match() said no: 16 bytes a number travel over each dim, then
/// 8 a rank.
/// Collective: as replicas_match().
ReplicaMismatch find_replica_mismatch(
    const std::vector<ReplicatedHash>& numbers,
    const mesh::DeviceMesh& mesh);

/// How far the copies of a tensor are from those that world rank `reference`
/// has or, along the other dims, the ranks beside it.
struct ReplicaDeviation {
  /// Absolute, over elements that are numbers on both sides. 0: the bits differ
  /// only in NaNs or in the sign of a zero.
  double largest = 0;
  /// World ranks that hold a NaN.
  std::vector<int64_t> nan_ranks;
};

/// Broadcasts the tensor once along each of `mesh_dims`.
/// Collective: all ranks of `mesh`, a root, tensors of one size; blocks.
ReplicaDeviation measure_replica_deviation(
    const at::Tensor& tensor,
    uint32_t mesh_dims,
    const mesh::DeviceMesh& mesh,
    int64_t reference);

/// The numbers of every rank, by place in mesh.ranks(), as many on each.
/// Collective: as replicas_match().
std::vector<std::vector<int64_t>> gather_over_mesh(
    const std::vector<int64_t>& own,
    const mesh::DeviceMesh& mesh);

} // namespace weft::ddp
