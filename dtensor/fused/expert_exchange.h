#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/fused/grouped_mm.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

/// The number of rows that this rank sends to, and receives from, each rank of
/// a group.
struct RowExchange {
  std::vector<int64_t> sent;
  std::vector<int64_t> received;

  /// Returns the reverse exchange.
  RowExchange reversed() const { return {received, sent}; }
};

/// Exchanges rows between ranks, without padding. Rows are ordered by
/// destination rank before and by source rank after. Differentiable to any
/// order; gradients use the reverse exchange.
/// Shapes: rows [sum of sent, ...] to [sum of received, ...].
/// Collective: all ranks of the group, even those without rows; blocks.
at::Tensor exchange_rows(
    const at::Tensor& rows,
    const RowExchange& exchange,
    const mesh::Communicator& group,
    const std::string& name);

/// The exchange of rows between tokens' ranks and experts' ranks, with its
/// permutations.
struct ExpertExchange {
  RowExchange rows;
  /// Indices for index_select(): `grouped` reorders received rows from (sender,
  /// expert) to expert order; `ungrouped` is its inverse.
  at::Tensor grouped;
  at::Tensor ungrouped;
  /// The number of rows of each expert of this rank.
  GroupCounts counts;
};

/// Exchanges how many rows each rank receives for each of its experts. `counts`
/// are this rank's rows for each expert of the group; `experts_of` is the
/// number of experts of each rank. On the meta device every sender is assumed
/// to send the same as this rank.
/// Collective: all ranks of the group; blocks.
ExpertExchange plan_exchange(
    const GroupCounts& counts,
    const std::vector<int64_t>& experts_of,
    mesh::Communicator& group,
    c10::Device device,
    const std::string& name);

} // namespace weft::dtensor
