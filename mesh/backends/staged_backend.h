#pragma once

#include <memory>

#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// Moves device tensors through host memory over `host`. This is slow, but
/// works where NCCL does not, for example if several ranks share one GPU. Every
/// call blocks the host. Shapes and results are bitwise those of `host`.
std::shared_ptr<Backend> make_staged_backend(
    std::shared_ptr<Backend> host,
    c10::DeviceType device);

} // namespace weft::mesh
