#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/communicator.h"

namespace weft::dtensor {

using mesh::ReduceOp;

/// How one mesh dim holds a tensor: cut along a tensor dim, whole on every
/// rank, or as terms of a pending reduction. A value type; made by Shard(),
/// Replicate() and Partial().
/// Source: torch/distributed/tensor/placement_types.py.
class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };

  /// Replicate.
  Placement() = default;

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_shard(int64_t tensor_dim) const {
    return is_shard() && tensor_dim_ == tensor_dim;
  }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  bool is_partial(ReduceOp op) const { return is_partial() && op_ == op; }

  /// The dim a Shard cuts; may be negative until it meets a tensor.
  int64_t tensor_dim() const { return tensor_dim_; }
  /// The reduction a Partial waits for.
  ReduceOp reduce_op() const { return op_; }

  /// Shard(-1) of a 3-D tensor is Shard(2); others stay as they are.
  Placement normalized(int64_t ndim) const;

  /// "S(0)", "R", "P(sum)".
  std::string to_string() const;
  /// Reads what to_string() writes.
  /// Throws: c10::ValueError naming the text and the forms.
  static Placement parse(std::string_view text);

  bool operator==(const Placement&) const = default;
  /// A small number that differs between different placements.
  int64_t code() const;

 private:
  friend Placement Shard(int64_t);
  friend Placement Replicate();
  friend Placement Partial(ReduceOp);
  Placement(Kind kind, ReduceOp op, int64_t tensor_dim)
      : kind_(kind), op_(op), tensor_dim_(static_cast<int32_t>(tensor_dim)) {}

  Kind kind_ = Kind::kReplicate;
  ReduceOp op_ = ReduceOp::kSum;
  int32_t tensor_dim_ = 0;
};

/// Cut along `tensor_dim` as at::chunk does: ceil(size / n) rows each, so that
/// trailing shards can be short or empty.
Placement Shard(int64_t tensor_dim);
/// Whole on every rank.
Placement Replicate();
/// The tensor is the reduction of what the ranks hold.
Placement Partial(ReduceOp op = ReduceOp::kSum);

/// One placement a mesh dim.
using Placements = std::vector<Placement>;

/// "[S(0), R]".
std::string to_string(const Placements& placements);

/// "sum", "avg", "min", "max", "product".
std::string_view to_string(ReduceOp op);

} // namespace weft::dtensor
