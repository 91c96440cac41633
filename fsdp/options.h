#pragma once

#include <cstdint>
#include <optional>

#include "mesh/communicator/communicator.h"

namespace weft::fsdp {

/// When backward gathers the next unit.
/// Source: the two algorithms of torch.distributed.fsdp.BackwardPrefetch.
enum class BackwardPrefetch {
  /// When the unit is used.
  kNone,
  /// After the current unit's gradients are in flight: one unit is unsharded at
  /// a time.
  kPost,
  /// Before the current unit computes: communication and computation overlap.
  kPre,
};

/// How a unit is sharded.
struct FullyShardOptions {
  /// Whether the unit frees other ranks' rows after forward and gathers them
  /// again in backward. Unset means true for all units except the outermost.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// kAvg means that gradients are averages over the ranks, as in PyTorch. kSum
  /// is supported too.
  mesh::ReduceOp reduce_op = mesh::ReduceOp::kAvg;
};

/// How the units of a model are scheduled.
struct ScheduleOptions {
  /// The number of units that are gathered ahead in forward, in the order of
  /// the last forward.
  int64_t forward_prefetch = 1;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  /// The number of gradient reductions that may be in flight. 0 means that
  /// backward waits for each.
  int64_t reduce_in_flight = 1;
};

} // namespace weft::fsdp
