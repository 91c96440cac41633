#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/fused/grouped_mm.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

/// How many rows this rank sends to each rank of a group, and receives.
struct RowExchange {
  std::vector<int64_t> sent;
  std::vector<int64_t> received;

  /// The way back.
  RowExchange reversed() const { return {received, sent}; }
};

/// Brings rows to other ranks: those for the group's first rank lie first, and
/// those from it come first. Exactly those, none padded. Differentiable, any
/// number of times: gradients go the way back.
/// Shapes: rows [sum of sent, ...] to [sum of received, ...].
/// Collective: all ranks of the group, whatever they have to send; blocks.
at::Tensor exchange_rows(
    const at::Tensor& rows,
    const RowExchange& exchange,
    const mesh::Communicator& group,
    const std::string& name);

/// How rows come to the ranks of their experts, and lie there.
struct ExpertExchange {
  RowExchange rows;
  /// What arrives lies in the order of senders, and of the experts of each:
  /// index_select() with this brings it to the order of experts, and back.
  at::Tensor grouped;
  at::Tensor ungrouped;
  /// Rows of each expert of this rank.
  GroupCounts counts;
};

/// Tells all ranks how many rows come to each of their experts. `counts`: this
/// rank's rows for each expert of the group; `experts_of`: how many experts
/// each rank has. On the meta device, every sender is taken to be like this
/// rank.
/// Collective: all ranks of the group; blocks.
ExpertExchange plan_exchange(
    const GroupCounts& counts,
    const std::vector<int64_t>& experts_of,
    mesh::Communicator& group,
    c10::Device device,
    const std::string& name);

} // namespace weft::dtensor
