#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

using mesh::ReduceOp;

/// The placement of a tensor on one mesh dim: Shard, Replicate or Partial. A
/// value type, created by Shard(), StridedShard(), Replicate() and Partial().
/// Source: torch/distributed/tensor/placement_types.py.
class Placement {
 public:
  /// The kind of a placement.
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard, kPartial };

  /// Creates Replicate.
  Placement() = default;

  /// The kind.
  Kind kind() const { return kind_; }
  /// Returns true for Replicate.
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  /// Returns true for a Shard of any sizes and for a StridedShard.
  bool is_shard() const {
    return kind_ == Kind::kShard || kind_ == Kind::kStridedShard;
  }
  /// Returns true for a shard of that tensor dim, which is compared as it was
  /// given.
  bool is_shard(int64_t tensor_dim) const {
    return is_shard() && tensor_dim_ == tensor_dim;
  }
  /// Returns true for a StridedShard.
  bool is_strided() const { return kind_ == Kind::kStridedShard; }
  /// Returns true for a Shard whose sizes are not those of at::chunk.
  bool has_shard_sizes() const { return sizes_ != nullptr; }
  /// Returns true for a Shard by the chunk rule. Sharding rules use only these.
  bool is_chunked() const { return kind_ == Kind::kShard && !sizes_; }
  /// Returns true for a Partial of any reduction.
  bool is_partial() const { return kind_ == Kind::kPartial; }
  /// Returns true for a Partial with that reduction.
  bool is_partial(ReduceOp op) const { return is_partial() && op_ == op; }

  /// The tensor dim of a Shard. It may be negative until it is applied to a
  /// tensor.
  int64_t tensor_dim() const { return tensor_dim_; }
  /// Returns the same placement with another tensor dim.
  Placement with_tensor_dim(int64_t tensor_dim) const;
  /// The rows of each rank. Empty unless has_shard_sizes().
  const std::vector<int64_t>& shard_sizes() const;
  /// See StridedShard().
  int64_t split_factor() const { return split_factor_; }
  /// The reduction of a Partial.
  ReduceOp reduce_op() const { return op_; }

  /// Returns the placement with a non-negative dim: Shard(-1) of a 3-D tensor
  /// is Shard(2).
  Placement normalized(int64_t ndim) const;

  /// Returns a text such as "S(0)", "S(0, [3, 5])" (given sizes), "_S(0, 2)"
  /// (a StridedShard), "R" or "P(sum)".
  std::string to_string() const;
  /// Parses the format of to_string().
  /// Throws: c10::ValueError naming the text and the formats.
  static Placement parse(std::string_view text);

  /// Returns true if kind, dim, sizes, split factor and reduction are equal.
  bool operator==(const Placement& other) const;
  /// Returns a number that is equal for equal placements, and on every rank.
  /// Different placements have different numbers, except that the sizes of a
  /// Shard are hashed.
  int64_t code() const;

 private:
  friend Placement Shard(int64_t);
  friend Placement Shard(int64_t, std::vector<int64_t>);
  friend Placement StridedShard(int64_t, int64_t);
  friend Placement Replicate();
  friend Placement Partial(ReduceOp);
  Placement(Kind kind, ReduceOp op, int64_t tensor_dim)
      : kind_(kind), op_(op), tensor_dim_(static_cast<int32_t>(tensor_dim)) {}

  Kind kind_ = Kind::kReplicate;
  ReduceOp op_ = ReduceOp::kSum;
  int32_t tensor_dim_ = 0;
  int32_t split_factor_ = 1;
  std::shared_ptr<const std::vector<int64_t>> sizes_;
};

/// Shards `tensor_dim` like at::chunk: ceil(size / n) rows per rank, so that
/// the last shards can be shorter or empty.
Placement Shard(int64_t tensor_dim);
/// Shards `tensor_dim` so that the i-th rank of the mesh dim holds sizes[i]
/// rows. The sum must be the number of rows after the mesh dims before this
/// one. Sizes equal to the chunk rule's become a plain Shard when they are
/// applied to a tensor.
/// Throws: c10::ValueError if `sizes` is empty or one is negative.
Placement Shard(int64_t tensor_dim, std::vector<int64_t> sizes);
/// Shards each of `split_factor` chunks of `tensor_dim` separately: each rank
/// holds its part of every chunk, concatenated. It describes two mesh dims that
/// shard one tensor dim, the later one first: [_S(0, tp), S(0)] on dp x tp is
/// the tp shard, sharded again over dp. See Note [Order of shards] in
/// dim_shards.cpp.
/// Throws: c10::ValueError unless 1 <= `split_factor` < 2^31.
/// Source: torch/distributed/tensor/placement_types.py, _StridedShard.
Placement StridedShard(int64_t tensor_dim, int64_t split_factor);
/// The full tensor on every rank.
Placement Replicate();
/// The tensor is the reduction of the ranks' local tensors. If several mesh
/// dims are Partial, the innermost is reduced first. There is no masked form: a
/// lookup in a row-sharded table gives zeros on ranks without the row, so that
/// its result is a Partial sum.
Placement Partial(ReduceOp op = ReduceOp::kSum);

/// One placement per mesh dim.
using Placements = std::vector<Placement>;

/// Returns "[S(0), R]".
std::string to_string(const Placements& placements);

/// Returns "sum", "avg", "min", "max" or "product".
std::string_view to_string(ReduceOp op);

} // namespace weft::dtensor

template <>
struct std::hash<weft::dtensor::Placement> {
  size_t operator()(const weft::dtensor::Placement& placement) const {
    return std::hash<int64_t>()(placement.code());
  }
};
