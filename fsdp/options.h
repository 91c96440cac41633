#pragma once

#include <cstdint>
#include <optional>

#include "mesh/communicator/communicator.h"

namespace weft::fsdp {

/// When the next unit of backward is gathered. Source: the two algorithms of
/// torch.distributed.fsdp.BackwardPrefetch.
enum class BackwardPrefetch {
  /// When it is used.
  kNone,
  /// Once the gradients of the current one are on their way: one unit is
  /// unsharded at a time.
  kPost,
  /// Before the current one computes: gathering and computing overlap.
  kPre,
};

/// How a unit is sharded.
struct FullyShardOptions {
  /// Whether other ranks' rows are given away after forward, and gathered once
  /// more in backward. Unset: those of the outermost unit stay.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// kAvg: gradients are means over the ranks, as those of PyTorch; kSum.
  mesh::ReduceOp reduce_op = mesh::ReduceOp::kAvg;
};

/// How the units of a model take turns.
struct ScheduleOptions {
  /// How many units are gathered ahead in forward, in the order that the last
  /// forward had.
  int64_t forward_prefetch = 1;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  /// How many reductions of gradients may be under way at once; 0: each is
  /// waited for before backward goes on.
  int64_t reduce_in_flight = 1;
};

} // namespace weft::fsdp
