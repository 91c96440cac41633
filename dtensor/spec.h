#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "dtensor/placement.h"
#include "mesh/device_mesh.h"

namespace weft::dtensor {

/// Rows [begin, begin + length) of one tensor dim that one rank holds; `chunk`
/// is the largest length any rank holds. Unit: rows.
struct ShardRange {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t chunk = 0;
};

/// What rank `index` of `num_shards` holds of `size` rows: see
/// Note [Uneven shards].
ShardRange shard_range(int64_t size, int64_t num_shards, int64_t index);

/// Where a tensor's parts lie: a mesh and one placement a mesh dim. A value;
/// the placements are interned in the mesh, so comparing is comparing pointers
/// and copying is cheap.
class DTensorSpec {
 public:
  /// On the mesh of no dims.
  DTensorSpec();
  /// Throws: c10::ValueError unless there is one placement a mesh dim.
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

/// This rank's box of a tensor: offset + [0, sizes) in every dim.
struct LocalBox {
  std::vector<int64_t> offset;
  std::vector<int64_t> sizes;
};

/// Shards of nested mesh dims cut in mesh order: the first mesh dim cuts the
/// whole, the next one what the first left.
LocalBox local_box(const DTensorSpec& spec, c10::IntArrayRef global_sizes);
/// The box of the rank at `coordinate` (one number a mesh dim) of the mesh.
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
