#include "train/setup/job_mesh.h"

namespace weft::recipes {

mesh::DeviceMesh make_job_mesh(const Recipe& recipe, const mesh::World& world) {
  return mesh::DeviceMesh::create(
      world, {recipe.mesh.dp, recipe.mesh.tp}, {"dp", "tp"});
}

mesh::DeviceMesh batch_mesh(const mesh::DeviceMesh& mesh) {
  return mesh["dp"];
}

} // namespace weft::recipes
