#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data_parallel/parameters/module_state.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// What find_replica_difference() found.
struct ReplicaDifference {
  /// Of the first tensor that differs, and its place in the list.
  std::string name;
  size_t index = 0;
  /// World ranks: the first of those that have the bits that most replicas
  /// have, and those that have others.
  int64_t first_rank = 0;
  std::vector<int64_t> ranks;
  /// false: no bits are the most frequent, as between two replicas, and the
  /// first rank is the first of all.
  bool has_majority = false;
  /// The largest absolute difference, over elements that are numbers on both
  /// sides. 0: the bits differ only in NaNs or in the sign of a zero.
  double largest = 0;
  /// World ranks, the first one too, that hold a NaN there.
  std::vector<int64_t> nan_ranks;
};

/// Compares the bits of the replicas' tensors, of a DTensor those of its local
/// part, which other ranks have, too, where it is Replicate on other dims of
/// the mesh. While all are equal 24 bytes travel over each dim of the mesh; on
/// a difference 16 a tensor, and one tensor is broadcast to measure it.
/// Collective: all ranks of the root mesh of `dp`; blocks. All ranks give
/// tensors of the same names, in one order.
/// Throws: mesh::DisagreementError, on the ranks of `dp`, if names, sizes or
/// dtypes differ.
std::optional<ReplicaDifference> find_replica_difference(
    const std::vector<NamedTensor>& tensors,
    const mesh::DeviceMesh& dp);

/// Compares parameters and buffers but those that `ignore` names.
/// Collective: as find_replica_difference().
/// Throws, on all ranks: mesh::DisagreementError naming the first that differs,
/// the module that has it, the ranks and the size of the difference.
void check_replicas_equal(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const std::set<std::string>& ignore = {});

} // namespace weft::ddp
