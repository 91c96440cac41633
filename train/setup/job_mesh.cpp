#include "train/setup/job_mesh.h"

namespace weft::train {

mesh::DeviceMesh make_job_mesh(
    const config::Recipe& recipe,
    const mesh::World& world) {
  const auto& mesh = recipe.mesh;
  return mesh.is_sharded() ? mesh::DeviceMesh::create(
                                 world,
                                 {mesh.dp, mesh.dp_shard, mesh.tp},
                                 {"dp", "dp_shard", "tp"})
                           : mesh::DeviceMesh::create(
                                 world, {mesh.dp, mesh.tp}, {"dp", "tp"});
}

mesh::DeviceMesh data_parallel_mesh(const mesh::DeviceMesh& mesh) {
  if (!mesh.has_mesh_dim("dp_shard")) {
    return mesh["dp"];
  }
  return mesh.size("dp") == 1 ? mesh["dp_shard"]
                              : mesh.slice({"dp", "dp_shard"});
}

mesh::DeviceMesh batch_mesh(const mesh::DeviceMesh& mesh) {
  return data_parallel_mesh(mesh).flatten();
}

// The ranks of a tensor-parallel group are consecutive, because tp is the last
// dim of the mesh.
int64_t batch_rank(const config::Recipe& recipe, int64_t rank) {
  return rank / recipe.mesh.tp;
}

} // namespace weft::train
