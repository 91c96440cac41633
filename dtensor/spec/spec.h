#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "dtensor/spec/dim_shards.h"
#include "dtensor/spec/placement.h"
#include "mesh/device_mesh.h"

namespace weft::dtensor {

/// Where a tensor's parts lie: a mesh and one placement a mesh dim. A value;
/// the placements are interned in the mesh, so comparing and hashing is that of
/// a pointer and copying is cheap.
class DTensorSpec {
 public:
  /// On the mesh of no dims.
  DTensorSpec();
  /// Throws: c10::ValueError unless there is one placement a mesh dim, and one
  /// number of rows a rank in a Shard of given sizes.
  DTensorSpec(const mesh::DeviceMesh& mesh, const Placements& placements);

  const mesh::DeviceMesh& mesh() const { return mesh_; }
  const Placements& placements() const;
  const Placement& placement(int64_t mesh_dim) const {
    return placements()[mesh_dim];
  }
  int64_t mesh_ndim() const {
    return static_cast<int64_t>(placements().size());
  }

  bool has_partial() const;
  bool has_shard() const;
  /// No StridedShard, no Shard of given sizes: what nearly every spec is.
  bool is_chunked() const;
  /// Every mesh dim holds the whole tensor.
  bool is_replicated() const { return !has_partial() && !has_shard(); }

  /// The same mesh with other placements, or with one changed.
  DTensorSpec with(const Placements& placements) const;
  DTensorSpec with(int64_t mesh_dim, Placement placement) const;
  /// Partial becomes Replicate: where a gradient of such a tensor lies.
  DTensorSpec without_partial() const;

  /// "[S(0), R] on dp=2 tp=2".
  std::string to_string() const;

  bool operator==(const DTensorSpec& other) const {
    return entry_ == other.entry_;
  }
  /// The placements' entry in the mesh's table: equal for equal specs, valid as
  /// long as the mesh. What a cache inside the mesh keeps instead of a spec,
  /// which would keep the mesh alive.
  struct Entry;
  const Entry* id() const { return entry_; }
  /// The spec of an entry of `mesh`'s table.
  DTensorSpec(const mesh::DeviceMesh& mesh, const Entry* entry)
      : mesh_(mesh), entry_(entry) {}

 private:
  mesh::DeviceMesh mesh_;
  const Entry* entry_;
};

/// `spec` as a tensor of `global_sizes` has it: cuts that turn out to be the
/// chunk rule's become Shard(tensor_dim).
/// Throws: c10::ValueError if the rows of a Shard of given sizes do not add up
/// to what the cuts before it left on each rank; the same on all ranks.
DTensorSpec fitted(const DTensorSpec& spec, c10::IntArrayRef global_sizes);

/// Whether the rows of each Shard of given sizes add up to what the cuts before
/// it leave on each rank: what fitted() refuses otherwise.
bool given_rows_fit(
    const Placements& placements,
    const std::vector<int64_t>& mesh_shape,
    c10::IntArrayRef global_sizes);

/// The sizes of this rank's part of a tensor, or of that of the rank at
/// `coordinate` (one number a mesh dim) of the mesh. Any placements.
/// Throws: as fitted().
std::vector<int64_t> local_sizes(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes);
std::vector<int64_t> local_sizes_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate);

/// For each tensor dim the rows that a rank holds, in ascending order, adjacent
/// ones in one range; an empty part is one empty range. Any placements.
/// Throws: as fitted().
std::vector<RowRanges> local_ranges(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes);
std::vector<RowRanges> local_ranges_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate);

/// Whether every rank's part is one box: always, but for a StridedShard that
/// stands alone.
bool has_local_boxes(const DTensorSpec& spec, c10::IntArrayRef global_sizes);

/// This rank's box of a tensor: offset + [0, sizes) in every dim.
struct LocalBox {
  std::vector<int64_t> offset;
  std::vector<int64_t> sizes;
};

/// Shards of nested mesh dims cut in mesh order: the first mesh dim cuts the
/// whole, the next one what the first left; a StridedShard comes after those
/// that its split factor stands for.
/// Throws: as fitted(), and unless has_local_boxes().
LocalBox local_box(const DTensorSpec& spec, c10::IntArrayRef global_sizes);
/// The box of the rank at `coordinate`.
LocalBox local_box_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate);

/// Strides of a dense tensor of `sizes` whose dims lie in memory in the order
/// that `strides` say. A function of its arguments alone, never of a shard.
std::vector<int64_t> dense_strides(
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides);
std::vector<int64_t> row_major_strides(c10::IntArrayRef sizes);

} // namespace weft::dtensor

template <>
struct std::hash<weft::dtensor::DTensorSpec> {
  size_t operator()(const weft::dtensor::DTensorSpec& spec) const {
    return std::hash<const void*>()(spec.id());
  }
};
