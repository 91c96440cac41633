#pragma once

#include <memory>

#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// One group over two backends: tensors on a device go over `device`, those of
/// the CPU (counts, losses, texts) over `host`, which also makes the barriers.
/// Both have the same members.
std::shared_ptr<Backend> make_paired_backend(
    std::shared_ptr<Backend> device,
    std::shared_ptr<Backend> host);

} // namespace weft::mesh
