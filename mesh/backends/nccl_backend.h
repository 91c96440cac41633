#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "mesh/communicator/backend.h"
#include "mesh/device/device_plugin.h"

namespace weft::mesh {

/// Connects the members over NCCL. `name` is theirs alone in the world, as are
/// the keys of `store`.
/// Collective: the members; blocks.
std::shared_ptr<Backend> connect_nccl_backend(
    const GroupMembers& members,
    std::string name,
    c10::intrusive_ptr<c10d::Store> store,
    c10::Device device,
    const DevicePlugin& plugin);

/// Collectives over a c10d group whose operations run on a device's own
/// streams (ProcessGroupNCCL). A BackendWork's wait() does not block: it makes
/// this thread's current stream wait. See Note [Streams].
/// Lifetime: `plugin` outlives the backend; `group` is the backend's alone.
std::shared_ptr<Backend> make_nccl_backend(
    GroupMembers members,
    c10::intrusive_ptr<c10d::Backend> group,
    c10::Device device,
    const DevicePlugin& plugin);

/// Whether parts of these sizes are gathered padded to the largest: one native
/// all_gather instead of a message from every rank to every other.
bool pads_all_gather(const Backend::Counts& counts);

} // namespace weft::mesh
