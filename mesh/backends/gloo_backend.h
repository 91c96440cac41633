#pragma once

#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "mesh/communicator/backend.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// A listening socket and the thread that serves it; one serves all groups of
/// a rank.
struct GlooDevice;

/// Listens at `address` (a name or number) on a port the system chooses.
/// Throws: CommError if the address is not this host's.
std::shared_ptr<GlooDevice> make_gloo_device(const std::string& address);

/// Connects the members with each other through `store`, whose keys must be
/// this group's alone.
/// Collective: the members; blocks.
/// Throws: CommError if they do not all come within their timeout.
std::shared_ptr<Backend> make_gloo_backend(
    GroupMembers members,
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::shared_ptr<GlooDevice>& device);

} // namespace weft::mesh
