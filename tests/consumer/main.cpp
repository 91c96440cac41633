#include <iostream>

#include <ATen/ops/ones.h>

#include <weft/dtensor/tensor/dtensor.h>
#include <weft/mesh/device_mesh.h>

#include "mesh/world.h"

// Plays rank 3 of a 2 x 2 mesh whose other ranks do not exist.
int main() {
  const auto world = weft::mesh::World::fake(/*rank=*/3, /*world_size=*/4);
  const auto mesh = weft::mesh::DeviceMesh::create(world, {2, 2}, {"dp", "tp"});
  const auto x = weft::dtensor::from_local(
      at::ones({2, 3}), mesh["tp"], {weft::dtensor::Shard(0)});
  std::cout << kOwnWorld << ", " << mesh.describe_rank() << ": "
            << weft::dtensor::describe(x.add(x)) << '\n';
  return 0;
}
