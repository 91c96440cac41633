#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/dim_shards.h"
#include "dtensor/spec/placement.h"

namespace weft::dtensor {

/// The rows of each tensor dim that a rank holds, in ascending order.
using Region = std::vector<RowRanges>;

int64_t row_count(const RowRanges& rows);
/// Returns the number of elements of a region.
int64_t element_count(const Region& region);

RowRanges common_rows(const RowRanges& a, const RowRanges& b);
Region common_region(const Region& a, const Region& b);

/// Returns the positions of `part`, which is within `held`, in a tensor that
/// contains only `held`.
Region positions_in(const Region& held, const Region& part);

/// Returns the elements at `positions` of a tensor: a view if they form one
/// box, otherwise a copy.
at::Tensor take_region(const at::Tensor& tensor, const Region& positions);
/// Writes `part` to `positions`.
void put_region(
    const at::Tensor& tensor,
    const Region& positions,
    const at::Tensor& part);
/// Returns true if the region is one range in every dim.
bool is_box(const Region& region);
/// Copies the elements at `positions` of `tensor` to `part`.
void copy_region(
    const at::Tensor& part,
    const at::Tensor& tensor,
    const Region& positions);

std::vector<int64_t> sizes_of(const Region& region);

/// The shards of a tensor dim, split into those of other mesh dims, which come
/// first, and those of `mesh_dims`.
struct SplitCuts {
  DimShards outer;
  DimShards inner;
};
/// Splits shards. If one of `mesh_dims` is not after all others, the two lists
/// together are shorter than `cuts`.
SplitCuts split_cuts(const DimShards& cuts, const std::vector<int64_t>& dims);

/// Returns what each rank of the group over `mesh_dims` (row-major) holds of a
/// tensor of `sizes` that only `inner` shards. `inner` has one list per tensor
/// dim.
std::vector<Region> group_regions(
    const std::vector<DimShards>& inner,
    c10::IntArrayRef sizes,
    c10::IntArrayRef mesh_shape,
    const std::vector<int64_t>& mesh_dims);

// Note [Exchanges]
// ~~~~~~~~~~~~~~~~
// Where each rank of a group holds one region and is to hold another, with
// copies of some before or after, one all_to_all brings to each exactly what it
// lacks: what a rank has already stays, and of the ranks that hold copies of
// what it needs, each serves its share of the askers.

/// The senders and receivers of an exchange. Both lists have one region per
/// rank of the group; the distinct regions of `before` do not overlap.
class ExchangeMap {
 public:
  ExchangeMap(std::vector<Region> before, std::vector<Region> after);

  const Region& before(int64_t rank) const { return before_[rank]; }
  const Region& after(int64_t rank) const { return after_[rank]; }
  /// Returns what `sender` sends to `receiver`, or what it keeps if both are
  /// the same rank. May be empty.
  Region sent(int64_t sender, int64_t receiver) const;
  /// Returns the number of elements that the busiest rank sends or receives,
  /// whichever is larger.
  int64_t busiest() const;

 private:
  int64_t ranks() const { return static_cast<int64_t>(before_.size()); }

  std::vector<Region> before_;
  std::vector<Region> after_;
  /// For each rank, the ranks with the same region, in group order.
  std::vector<std::vector<int64_t>> holders_;
};

} // namespace weft::dtensor
