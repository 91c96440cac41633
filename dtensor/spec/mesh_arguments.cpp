#include "dtensor/spec/mesh_arguments.h"

#include "mesh/device_mesh.h"

namespace weft::dtensor {

std::string describe_meshes(
    const mesh::DeviceMesh& one,
    const mesh::DeviceMesh& other) {
  auto text = one.to_string() + " vs " + other.to_string();
  if (one.to_string() == other.to_string()) {
    text +=
        one.ranks() == other.ranks()
            ? ", two DeviceMesh objects of the same shape and ranks that were "
              "made apart, so that their groups are not the same. Make one and "
              "copy it, or take sub-meshes of it"
            : ", two DeviceMesh objects of the same shape over other ranks";
  }
  return text;
}

} // namespace weft::dtensor
