#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "mesh/communicator/communicator.h"
#include "mesh/world.h"

namespace weft::mesh {

/// A grid of ranks with one group per mesh dim; immutable, cheap to copy.
/// Row-major: shape {2, 4} named {"dp", "tp"} puts rank 5 at (1, 1). A slice
/// keeps to this rank's row: mesh["tp"] holds the ranks that share its dp
/// coordinate.
///
/// A mesh serves one caller, as its groups do (Communicator): DTensors on it
/// are used by one thread, or by several whose calls the program orders. Meshes
/// that create() makes of the same world may share groups; a thread of its own
/// takes one that from_group() makes of a group of its own.
/// Source: torch/distributed/device_mesh.py.
class DeviceMesh {
 public:
  /// The mesh of no dims: one rank, nothing to communicate over. What a
  /// DTensor that was never placed lives on.
  DeviceMesh();

  /// Builds the grid and this rank's groups (one a mesh dim, however many
  /// others exist).
  /// Collective: all ranks of `world`, identical arguments; blocks.
  /// Throws: c10::ValueError if prod(shape) is not the world size, a size is
  /// below 1, the lengths differ, or a name repeats or is empty.
  static DeviceMesh create(
      const World& world,
      std::vector<int64_t> shape,
      std::vector<std::string> mesh_dim_names);

  /// A mesh of one dim over the ranks of a group, e.g. of World::make_group():
  /// what takes a mesh can so be given a group. A root mesh of its own.
  /// Source: torch/distributed/device_mesh.py, DeviceMesh.from_group.
  static DeviceMesh from_group(
      const World& world,
      const Communicator& group,
      std::string mesh_dim_name = "dp");

  int64_t ndim() const;
  /// Number of ranks in the mesh.
  int64_t size() const;
  int64_t size(int64_t mesh_dim) const;
  int64_t size(std::string_view mesh_dim) const;
  const std::vector<int64_t>& shape() const;
  const std::vector<std::string>& mesh_dim_names() const;
  /// The index of a mesh dim. Throws: c10::ValueError naming those that exist.
  int64_t mesh_dim(std::string_view name) const;
  bool has_mesh_dim(std::string_view name) const;

  /// This rank's position along `mesh_dim`, in [0, size(mesh_dim)).
  int64_t coordinate(int64_t mesh_dim) const;
  int64_t coordinate(std::string_view mesh_dim) const;
  /// This rank in the world.
  int64_t rank() const;
  /// World ranks of the mesh, row-major.
  const std::vector<int64_t>& ranks() const;

  /// The group of the ranks that differ from this one only along `mesh_dim`.
  Communicator& group(int64_t mesh_dim) const;
  Communicator& group(std::string_view mesh_dim) const;

  /// The sub-mesh of the named dims, in the mesh's order. Shares groups; not
  /// collective.
  /// Throws: c10::ValueError for an unknown name or one out of order.
  DeviceMesh operator[](std::string_view mesh_dim) const;
  DeviceMesh slice(const std::vector<std::string>& mesh_dims) const;

  /// A 1-D mesh over all of this mesh's ranks, named by its dims joined with
  /// "_" unless `name` says otherwise. Made once per root mesh and dims.
  /// Collective: the first call, over all ranks of the root mesh; blocks.
  DeviceMesh flatten(std::string name = {}) const;

  /// The mesh that create() made and this one was cut from; itself otherwise.
  DeviceMesh root() const;
  /// Throws: c10::ValueError for the mesh of no dims, which has none.
  const World& world() const;

  /// "dp=2 tp=4", for messages.
  std::string to_string() const;
  /// "rank 3/8, mesh dp=2 tp=4", for messages.
  std::string describe_rank() const;

  /// Same root mesh and same dims.
  bool operator==(const DeviceMesh& other) const;
  size_t hash() const;
  /// An address that equal meshes of one rank share, for cheap keys.
  const void* id() const;

  /// A per-mesh object of type T, default-made at the first call: where the
  /// layers above keep caches. Thread-safe; equal meshes share it, except those
  /// of no dims. Lifetime: while any mesh of the same root lives. T must not
  /// hold a DeviceMesh (its owner), or neither is ever freed.
  template <class T>
  T& extension() const;

  struct State;

 private:
  struct Root;
  explicit DeviceMesh(std::shared_ptr<State> state);
  std::shared_ptr<void> find_or_make_extension(
      const std::type_info& type,
      const std::function<std::shared_ptr<void>()>& make) const;
  std::shared_ptr<State> state_;
};

template <class T>
T& DeviceMesh::extension() const {
  return *static_cast<T*>(find_or_make_extension(typeid(T), [] {
                            return std::make_shared<T>();
                          }).get());
}

} // namespace weft::mesh
