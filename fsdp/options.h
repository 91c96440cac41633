#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

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

/// The dtypes of computation and reduction of a unit. Shards, their gradients
/// and the optimizer state keep the parameters' dtype. An empty dtype changes
/// nothing. Only floating point tensors are cast.
/// Source: torch/distributed/fsdp/_fully_shard/_fsdp_api.py,
/// MixedPrecisionPolicy.
struct MixedPrecisionPolicy {
  /// The dtype of the unsharded parameters, and so of forward and backward.
  /// Parameters are gathered in it.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  /// The dtype in which gradients are reduced, and accumulated under no_sync().
  /// The default is param_dtype.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  /// The dtype of the tensors that calls of the unit's modules return.
  std::optional<c10::ScalarType> output_dtype = std::nullopt;
  /// Casts the arguments of these calls to param_dtype.
  bool cast_forward_inputs = true;

  bool operator==(const MixedPrecisionPolicy&) const = default;
};

/// Returns the dtype that a policy's field `dtype` gives to tensors of `own`.
inline c10::ScalarType cast_dtype(
    c10::ScalarType own,
    const std::optional<c10::ScalarType>& dtype) {
  return c10::isFloatingType(own) ? dtype.value_or(own) : own;
}

/// How a unit is sharded.
struct FullyShardOptions {
  /// Whether the unit frees other ranks' rows after forward and gathers them
  /// again in backward. Unset means true for all units except the outermost.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// If it is not 0, each rank keeps a part of the unsharded parameters between
  /// forward and backward, and backward gathers them from groups of this many
  /// adjacent ranks, e.g. those of one host, instead of all. Costs
  /// 1 / reshard_to of the unsharded parameters in memory. Must be a divisor of
  /// the size of the mesh dim that shards, other than 1 and that size. Has no
  /// effect on a unit that does not reshard after forward.
  /// Source: torch/distributed/fsdp, an int as reshard_after_forward.
  int64_t reshard_to = 0;
  /// kAvg means that gradients are averages over the ranks, as in PyTorch. kSum
  /// is supported too.
  mesh::ReduceOp reduce_op = mesh::ReduceOp::kAvg;
  /// The dtypes of computation, reduction and outputs.
  MixedPrecisionPolicy mixed_precision = {};
};

/// How the units of a model are scheduled.
struct ScheduleOptions {
  /// The number of units that are gathered ahead in forward, in the order of
  /// the last forward.
  int64_t forward_prefetch = 1;
  /// The moment at which backward gathers the next unit.
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  /// The number of gradient reductions that may be in flight. 0 means that
  /// backward waits for each.
  int64_t reduce_in_flight = 1;
};

} // namespace weft::fsdp
