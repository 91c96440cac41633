#pragma once

#include <memory>

#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// Combines two backends with the same members: `device` moves tensors of the
/// device; `host` moves CPU tensors (counts, losses, strings) and runs the
/// barriers.
std::shared_ptr<Backend> make_paired_backend(
    std::shared_ptr<Backend> device,
    std::shared_ptr<Backend> host);

} // namespace weft::mesh
