#pragma once

#include <string>

namespace weft::mesh {
class DeviceMesh;
} // namespace weft::mesh

namespace weft::dtensor {

/// "dp=2 vs tp=2", for messages about tensors of two meshes; of two that look
/// alike also what makes them two.
std::string describe_meshes(
    const mesh::DeviceMesh& one,
    const mesh::DeviceMesh& other);

} // namespace weft::dtensor
