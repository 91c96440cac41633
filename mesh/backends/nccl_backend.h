#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "mesh/communicator/backend.h"
#include "mesh/device/device_plugin.h"

namespace weft::mesh {

/// Connects the members with NCCL. `name` and the keys of `store` must be
/// unique in the world.
/// Collective: the members; blocks.
std::shared_ptr<Backend> connect_nccl_backend(
    const GroupMembers& members,
    std::string name,
    c10::intrusive_ptr<c10d::Store> store,
    c10::Device device,
    const DevicePlugin& plugin);

/// Wraps a c10d group whose operations run on its own device streams
/// (ProcessGroupNCCL). BackendWork::wait() does not block: it makes this
/// thread's current stream wait. See Note [Streams].
/// Lifetime: `plugin` must outlive the backend; the backend owns `group`.
std::shared_ptr<Backend> make_nccl_backend(
    GroupMembers members,
    c10::intrusive_ptr<c10d::Backend> group,
    c10::Device device,
    const DevicePlugin& plugin);

/// Returns true if parts of these sizes are padded to the largest size, so that
/// one native all_gather replaces a message between every pair of ranks.
bool pads_all_gather(const Backend::Counts& counts);

} // namespace weft::mesh
