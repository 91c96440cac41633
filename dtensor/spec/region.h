#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtensor/spec/dim_shards.h"
#include "dtensor/spec/placement.h"

namespace weft::dtensor {

/// What a rank holds of a tensor: for each tensor dim its rows, in ascending
/// order.
using Region = std::vector<RowRanges>;

int64_t row_count(const RowRanges& rows);
/// Elements of a region.
int64_t element_count(const Region& region);

RowRanges common_rows(const RowRanges& a, const RowRanges& b);
Region common_region(const Region& a, const Region& b);

/// Where `part`, which lies within `held`, is in a tensor that packs `held`.
Region positions_in(const Region& held, const Region& part);

/// What lies at `positions` of a tensor: a view of one box, else a copy.
at::Tensor take_region(const at::Tensor& tensor, const Region& positions);
/// Writes `part` there.
void put_region(
    const at::Tensor& tensor,
    const Region& positions,
    const at::Tensor& part);
/// Whether it is one range in every dim.
bool is_box(const Region& region);
/// Copies what lies at `positions` of `tensor` to `part`.
void copy_region(
    const at::Tensor& part,
    const at::Tensor& tensor,
    const Region& positions);

std::vector<int64_t> sizes_of(const Region& region);

/// The cuts of a tensor dim by mesh dims other than `mesh_dims` come first:
/// these, and those by `mesh_dims`.
struct SplitCuts {
  DimShards outer;
  DimShards inner;
};
/// Nothing tells the two apart if one of `mesh_dims` is not behind all others:
/// then the lists together are shorter than `cuts`.
SplitCuts split_cuts(const DimShards& cuts, const std::vector<int64_t>& dims);

/// What each rank of the group over `mesh_dims` (row-major) holds of a tensor
/// of `sizes`, when inner cuts alone cut it. `inner`: one list a tensor dim.
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

/// Who sends what in an exchange. Both lists: one region a rank of the group;
/// the different ones of `before` have no element in common.
class ExchangeMap {
 public:
  ExchangeMap(std::vector<Region> before, std::vector<Region> after);

  const Region& before(int64_t rank) const { return before_[rank]; }
  const Region& after(int64_t rank) const { return after_[rank]; }
  /// What `sender` sends `receiver`; what it keeps, if they are one rank. No
  /// elements: nothing.
  Region sent(int64_t sender, int64_t receiver) const;
  /// Elements that the busiest rank sends or receives, whichever is more.
  int64_t busiest() const;

 private:
  int64_t ranks() const { return static_cast<int64_t>(before_.size()); }

  std::vector<Region> before_;
  std::vector<Region> after_;
  /// For each rank those that hold the same as it, in group order.
  std::vector<std::vector<int64_t>> holders_;
};

} // namespace weft::dtensor
