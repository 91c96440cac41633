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

/// The sharding spec of a tensor: a mesh and one placement per mesh dim. A
/// value type. Placements are interned in the mesh, so comparing and hashing
/// use a pointer, and copying is cheap.
class DTensorSpec {
 public:
  /// Creates a spec on the mesh without dims.
  DTensorSpec();
  /// Throws: c10::ValueError unless there is one placement per mesh dim, and a
  /// Shard of given sizes has one size per rank.
  DTensorSpec(const mesh::DeviceMesh& mesh, const Placements& placements);

  /// The mesh.
  const mesh::DeviceMesh& mesh() const { return mesh_; }
  /// The placements, one per mesh dim.
  const Placements& placements() const;
  /// The placement along one mesh dim.
  const Placement& placement(int64_t mesh_dim) const {
    return placements()[mesh_dim];
  }
  /// The number of mesh dims.
  int64_t mesh_ndim() const {
    return static_cast<int64_t>(placements().size());
  }

  /// Returns true if a placement is Partial.
  bool has_partial() const;
  /// Returns true if a placement is a shard.
  bool has_shard() const;
  /// Returns true if there is no StridedShard and no Shard of given sizes, as
  /// in nearly every spec.
  bool is_chunked() const;
  /// Returns true if every rank has the full tensor.
  bool is_replicated() const { return !has_partial() && !has_shard(); }

  /// Returns a spec on the same mesh with other placements, or with one
  /// changed.
  DTensorSpec with(const Placements& placements) const;
  DTensorSpec with(int64_t mesh_dim, Placement placement) const;
  /// Returns the spec with Partial replaced by Replicate, which is that of the
  /// tensor's gradient.
  DTensorSpec without_partial() const;

  /// Returns "[S(0), R] on dp=2 tp=2".
  std::string to_string() const;

  /// Returns true if mesh and placements are equal.
  bool operator==(const DTensorSpec& other) const {
    return entry_ == other.entry_;
  }
  /// An entry of the mesh's table of placements.
  struct Entry;
  /// Returns the entry of the placements: equal for equal specs, and valid as
  /// long as the mesh. Caches in the mesh store it instead of a spec, which
  /// would keep the mesh alive.
  const Entry* id() const { return entry_; }
  /// Creates the spec of an entry of `mesh`'s table.
  DTensorSpec(const mesh::DeviceMesh& mesh, const Entry* entry)
      : mesh_(mesh), entry_(entry) {}

 private:
  mesh::DeviceMesh mesh_;
  const Entry* entry_;
};

/// Returns `spec` for a tensor of `global_sizes`: a Shard of given sizes that
/// equal the chunk rule's becomes Shard(tensor_dim).
/// Throws: c10::ValueError, identical on all ranks, if the given sizes of a
/// Shard do not add up to the rows that the mesh dims before it left on each
/// rank.
DTensorSpec fitted(const DTensorSpec& spec, c10::IntArrayRef global_sizes);

/// Returns true if the given sizes of each Shard add up to the rows that the
/// mesh dims before it leave on each rank. Otherwise fitted() throws.
bool given_rows_fit(
    const Placements& placements,
    const std::vector<int64_t>& mesh_shape,
    c10::IntArrayRef global_sizes);

/// Returns the local sizes of a tensor on this rank. Supports all placements.
/// Throws: like fitted().
std::vector<int64_t> local_sizes(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes);
/// Returns the local sizes on the rank at `coordinate`, one number per mesh
/// dim.
/// Throws: like fitted().
std::vector<int64_t> local_sizes_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate);

/// Returns the rows of each tensor dim that this rank holds, in ascending
/// order, with adjacent rows as one range; an empty part is one empty range.
/// Supports all placements.
/// Throws: like fitted().
std::vector<RowRanges> local_ranges(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes);
/// Returns the rows that the rank at `coordinate` holds.
/// Throws: like fitted().
std::vector<RowRanges> local_ranges_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate);

/// Returns true if every rank's part is one box: adjacent rows in each tensor
/// dim. False only if a StridedShard has a split factor that no Shard of later
/// mesh dims accounts for, so that some rank's rows are not adjacent.
bool has_local_boxes(const DTensorSpec& spec, c10::IntArrayRef global_sizes);

/// This rank's box of a tensor: offset + [0, sizes) in every dim.
struct LocalBox {
  /// The first index of the box in the full tensor, by dim.
  std::vector<int64_t> offset;
  /// The sizes of the box, by dim.
  std::vector<int64_t> sizes;
};

/// Returns this rank's box. The first mesh dim shards the tensor and the next
/// one what the first left; a StridedShard follows the mesh dims that its split
/// factor stands for.
/// Throws: like fitted(), and if not has_local_boxes().
LocalBox local_box(const DTensorSpec& spec, c10::IntArrayRef global_sizes);
/// Returns the box of the rank at `coordinate`.
LocalBox local_box_at(
    const DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate);

/// Returns the strides of a dense tensor of `sizes` with the order of dims of
/// `strides`. A function of its arguments alone, never of a shard.
std::vector<int64_t> dense_strides(
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides);
/// Returns the strides of a dense tensor whose last dim is the fastest.
std::vector<int64_t> row_major_strides(c10::IntArrayRef sizes);

} // namespace weft::dtensor

template <>
struct std::hash<weft::dtensor::DTensorSpec> {
  size_t operator()(const weft::dtensor::DTensorSpec& spec) const {
    return std::hash<const void*>()(spec.id());
  }
};
