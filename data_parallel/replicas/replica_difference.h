#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data_parallel/parameters/module_state.h"
#include "mesh/device_mesh.h"

namespace weft::data_parallel {

/// The result of find_replica_difference().
struct ReplicaDifference {
  /// The name of the first tensor that differs and its position in the list.
  std::string name;
  size_t index = 0;
  /// The first rank with the bits that most replicas have, and the ranks with
  /// other bits. World ranks.
  int64_t first_rank = 0;
  std::vector<int64_t> ranks;
  /// False if no bits have a majority, as between two replicas that differ.
  /// `first_rank` is then the lowest rank of all replicas.
  bool has_majority = false;
  /// The largest absolute difference over elements that are numbers on both
  /// sides. 0 means that only NaNs or signs of zeros differ.
  double largest = 0;
  /// The world ranks with a NaN in the tensor, including the first rank.
  std::vector<int64_t> nan_ranks;
};

/// Compares the replicas' tensors bitwise. For a DTensor it compares local
/// tensors, which other ranks also have if it is Replicate on other dims of the
/// mesh. Sends 24 bytes over each dim of the mesh if all are equal; otherwise
/// 16 bytes per tensor, and one tensor is broadcast to measure the difference.
/// Collective: all ranks of the root mesh of `dp`; blocks. All ranks pass
/// tensors of the same names in the same order.
/// Throws: mesh::DisagreementError, on the ranks of `dp`, if names, sizes or
/// dtypes differ.
std::optional<ReplicaDifference> find_replica_difference(
    const std::vector<NamedTensor>& tensors,
    const mesh::DeviceMesh& dp);

/// Compares parameters and buffers, except those named in `ignore`.
/// Collective: like find_replica_difference().
/// Throws: mesh::DisagreementError on all ranks, naming the first tensor that
/// differs, its module, the ranks and the size of the difference.
void check_replicas_equal(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& dp,
    const std::set<std::string>& ignore = {});

} // namespace weft::data_parallel
