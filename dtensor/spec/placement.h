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

/// How one mesh dim holds a tensor: cut along a tensor dim, whole on every
/// rank, or as terms of a pending reduction. A value type; made by Shard(),
/// StridedShard(), Replicate() and Partial().
/// Source: torch/distributed/tensor/placement_types.py.
class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard, kPartial };

  /// Replicate.
  Placement() = default;

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  /// Cuts a tensor dim: a Shard of any sizes or a StridedShard.
  bool is_shard() const {
    return kind_ == Kind::kShard || kind_ == Kind::kStridedShard;
  }
  bool is_shard(int64_t tensor_dim) const {
    return is_shard() && tensor_dim_ == tensor_dim;
  }
  bool is_strided() const { return kind_ == Kind::kStridedShard; }
  /// A Shard whose parts are not at::chunk's.
  bool has_shard_sizes() const { return sizes_ != nullptr; }
  /// A Shard by the chunk rule: what sharding rules speak of.
  bool is_chunked() const { return kind_ == Kind::kShard && !sizes_; }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  bool is_partial(ReduceOp op) const { return is_partial() && op_ == op; }

  /// The dim a Shard cuts; may be negative until it meets a tensor.
  int64_t tensor_dim() const { return tensor_dim_; }
  /// The same cut of another dim.
  Placement with_tensor_dim(int64_t tensor_dim) const;
  /// Rows of each rank; empty unless has_shard_sizes().
  const std::vector<int64_t>& shard_sizes() const;
  /// See StridedShard().
  int64_t split_factor() const { return split_factor_; }
  /// The reduction a Partial waits for.
  ReduceOp reduce_op() const { return op_; }

  /// Shard(-1) of a 3-D tensor is Shard(2); others stay as they are.
  Placement normalized(int64_t ndim) const;

  /// "S(0)", "S(0, [3, 5])", "_S(0, 2)", "R", "P(sum)".
  std::string to_string() const;
  /// Reads what to_string() writes.
  /// Throws: c10::ValueError naming the text and the forms.
  static Placement parse(std::string_view text);

  bool operator==(const Placement& other) const;
  /// Equal for equal placements, and on every rank; different ones differ but
  /// for the rows of a Shard, of which it is a hash.
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

/// Cut along `tensor_dim` as at::chunk does: ceil(size / n) rows each, so that
/// trailing shards can be short or empty.
Placement Shard(int64_t tensor_dim);
/// Cut along `tensor_dim` so that the i-th rank of the mesh dim holds sizes[i]
/// rows; they add up to what the mesh dims before this one left. Sizes of the
/// chunk rule are not told apart from it until they meet a tensor.
/// Throws: c10::ValueError if `sizes` is empty or one is negative.
Placement Shard(int64_t tensor_dim, std::vector<int64_t> sizes);
/// Cut along `tensor_dim` after it was cut in `split_factor` chunks: each rank
/// holds its part of every chunk, one after the other. Two mesh dims on one
/// tensor dim, the later one first: [_S(0, tp), S(0)] on dp x tp is the tp
/// shard, cut again over dp. See Note [Order of shards] in dim_shards.cpp.
/// Throws: c10::ValueError unless 1 <= `split_factor` < 2^31.
/// Source: torch/distributed/tensor/placement_types.py, _StridedShard.
Placement StridedShard(int64_t tensor_dim, int64_t split_factor);
/// Whole on every rank.
Placement Replicate();
/// The tensor is the reduction of what the ranks hold: over the innermost mesh
/// dim first, where several wait. There is no masked form: the lookup in a
/// table cut by rows leaves zeros where a rank has not the row, so that its
/// result is a plain Partial sum.
Placement Partial(ReduceOp op = ReduceOp::kSum);

/// One placement a mesh dim.
using Placements = std::vector<Placement>;

/// "[S(0), R]".
std::string to_string(const Placements& placements);

/// "sum", "avg", "min", "max", "product".
std::string_view to_string(ReduceOp op);

} // namespace weft::dtensor

template <>
struct std::hash<weft::dtensor::Placement> {
  size_t operator()(const weft::dtensor::Placement& placement) const {
    return std::hash<int64_t>()(placement.code());
  }
};
