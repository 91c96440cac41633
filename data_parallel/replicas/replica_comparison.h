#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace weft::data_parallel {

/// A number, e.g. the hash of a tensor, that is replicated on other ranks.
struct ReplicatedHash {
  int64_t value = 0;
  /// The mesh dims along which it is replicated, one bit each: bit 0 is mesh
  /// dim 0.
  uint32_t mesh_dims = 0;
};

/// Returns the bits of all dims of a mesh.
uint32_t all_mesh_dims(const mesh::DeviceMesh& mesh);
/// Returns the dims of the root of `dp` along which ranks hold the same as this
/// one: the dims of `dp`, and for a DTensor on a slice of that root its
/// Replicate dims.
uint32_t replicated_mesh_dims(
    const at::Tensor& tensor,
    const mesh::DeviceMesh& dp);

/// Returns true if all replicas are equal. Sends 24 bytes over each dim of the
/// mesh, and 8 more over some if a number is replicated along a dim but not
/// along an earlier one. Always true with a fake process group.
/// Collective: all ranks of the root mesh `mesh`, with the same list except for
/// values; blocks.
bool replicas_match(
    const std::vector<ReplicatedHash>& numbers,
    const mesh::DeviceMesh& mesh);

/// The first hash that differs between replicas, and the ranks in the minority.
/// World ranks, ascending; replicas that are all equal are in no list.
struct ReplicaMismatch {
  size_t index = 0;
  /// The ranks whose value most replicas have, at least two.
  std::vector<int64_t> majority_ranks;
  /// The ranks with another value.
  std::vector<int64_t> mismatched_ranks;
  /// The ranks whose replicas have no majority, e.g. two replicas.
  std::vector<int64_t> tied_ranks;
  /// The values by position in mesh.ranks().
  std::vector<int64_t> values;
};

/// Finds the mismatch after replicas_match() returned false. Sends 16 bytes per
/// number over each dim, then 8 per rank.
/// Collective: like replicas_match().
ReplicaMismatch find_replica_mismatch(
    const std::vector<ReplicatedHash>& numbers,
    const mesh::DeviceMesh& mesh);

/// The distance of a tensor's replicas from those of world rank `reference` or,
/// along the other dims, of its peers.
struct ReplicaDeviation {
  /// The largest absolute difference over elements that are numbers on both
  /// sides. 0 means that only NaNs or signs of zeros differ.
  double largest = 0;
  /// The world ranks with a NaN.
  std::vector<int64_t> nan_ranks;
};

/// Measures the distance by broadcasting the tensor once along each of
/// `mesh_dims`.
/// Collective: all ranks of the root mesh `mesh`, with tensors of one size;
/// blocks.
ReplicaDeviation measure_replica_deviation(
    const at::Tensor& tensor,
    uint32_t mesh_dims,
    const mesh::DeviceMesh& mesh,
    int64_t reference);

/// Returns the numbers of every rank by position in mesh.ranks(); all ranks
/// pass the same count.
/// Collective: like replicas_match().
std::vector<std::vector<int64_t>> gather_over_mesh(
    const std::vector<int64_t>& own,
    const mesh::DeviceMesh& mesh);

} // namespace weft::data_parallel
