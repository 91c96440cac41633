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

/// A grid of ranks with one group per mesh dim. Immutable and cheap to copy.
/// Row-major: shape {2, 4} with names {"dp", "tp"} puts rank 5 at (1, 1). A
/// slice keeps this rank's coordinates in the other dims: mesh["tp"] contains
/// the ranks with its dp coordinate.
/// A mesh serves one caller, like its groups (see Communicator): its DTensors
/// are used by one thread, or by several whose calls the program orders. Meshes
/// that create() makes of the same world may share groups; a thread of its own
/// uses from_group() with a group of its own.
/// Source: torch/distributed/device_mesh.py.
class DeviceMesh {
 public:
  /// Creates the mesh without dims: one rank and no groups. An unplaced DTensor
  /// is on it.
  DeviceMesh();

  /// Creates the grid and this rank's groups, one per mesh dim.
  /// Collective: all ranks of `world` with identical arguments; blocks.
  /// Throws: c10::ValueError if prod(shape) is not the world size, a size is
  /// below 1, the lengths differ, or a name repeats or is empty.
  static DeviceMesh create(
      const World& world,
      std::vector<int64_t> shape,
      std::vector<std::string> mesh_dim_names);

  /// Creates a 1-D root mesh over the ranks of a group, e.g. of
  /// World::make_group().
  /// Source: torch/distributed/device_mesh.py, DeviceMesh.from_group.
  static DeviceMesh from_group(
      const World& world,
      const Communicator& group,
      std::string mesh_dim_name = "dp");

  /// The number of mesh dims.
  int64_t ndim() const;
  /// The number of ranks in the mesh.
  int64_t size() const;
  /// The number of ranks along `mesh_dim`.
  int64_t size(int64_t mesh_dim) const;
  int64_t size(std::string_view mesh_dim) const;
  /// The sizes of the mesh dims.
  const std::vector<int64_t>& shape() const;
  /// The names of the mesh dims.
  const std::vector<std::string>& mesh_dim_names() const;
  /// Returns the index of a mesh dim.
  /// Throws: c10::ValueError listing the mesh dims if the name is unknown.
  int64_t mesh_dim(std::string_view name) const;
  /// Returns true if a mesh dim has that name.
  bool has_mesh_dim(std::string_view name) const;

  /// This rank's position along `mesh_dim`, in [0, size(mesh_dim)).
  int64_t coordinate(int64_t mesh_dim) const;
  int64_t coordinate(std::string_view mesh_dim) const;
  /// This rank's world rank.
  int64_t rank() const;
  /// The world ranks of the mesh, row-major.
  const std::vector<int64_t>& ranks() const;

  /// Returns the group of the ranks that differ from this one only along
  /// `mesh_dim`.
  Communicator& group(int64_t mesh_dim) const;
  Communicator& group(std::string_view mesh_dim) const;

  /// Returns the sub-mesh of the named dims, in the mesh's order. Shares
  /// groups; not collective.
  /// Throws: c10::ValueError if a name is unknown or out of order.
  DeviceMesh operator[](std::string_view mesh_dim) const;
  /// Like operator[], for several dims.
  DeviceMesh slice(const std::vector<std::string>& mesh_dims) const;

  /// Returns a 1-D mesh over all ranks of this mesh. Its default name is the
  /// dims' names joined with "_". Created once per root mesh and dims.
  /// Collective: the first call, over all ranks of the root mesh; blocks.
  DeviceMesh flatten(std::string name = {}) const;

  /// Returns the mesh that create() made and that this one is a slice of, or
  /// this mesh itself.
  DeviceMesh root() const;
  /// Throws: c10::ValueError for the mesh without dims, which has no world.
  const World& world() const;

  /// Returns "dp=2 tp=4", for messages.
  std::string to_string() const;
  /// Returns "rank 3/8, mesh dp=2 tp=4", for messages.
  std::string describe_rank() const;

  /// Returns true if both have the same root mesh and the same dims.
  bool operator==(const DeviceMesh& other) const;
  /// Returns a number that is equal for equal meshes.
  size_t hash() const;
  /// An address that equal meshes of one rank share, for use as a key.
  const void* id() const;

  /// Returns a per-mesh object of type T, default-constructed at the first
  /// call, for caches of the layers above. Thread-safe. Equal meshes share it,
  /// except meshes without dims.
  /// Lifetime: as long as any mesh of the same root. T must not hold a
  /// DeviceMesh, which owns it: neither would ever be freed.
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
