#pragma once

#include <memory>

#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// Moves tensors of a device through the host's memory over `host`: slow, and
/// works where NCCL does not, e.g. for several ranks that share one GPU. The
/// host waits in every call.
/// Shapes, results: as `host`'s, bit for bit.
std::shared_ptr<Backend> make_staged_backend(
    std::shared_ptr<Backend> host,
    c10::DeviceType device);

} // namespace weft::mesh
