#pragma once

#include <memory>
#include <string>

#include "mesh/bootstrap/cancellable_store.h"
#include "mesh/communicator/backend.h"

namespace weft::mesh {

/// A listening socket and the thread that serves it, shared by all groups of a
/// rank.
struct GlooDevice;

/// Listens at `address` (a name or number) on a port that the system chooses.
/// Throws: CommError if the address does not belong to this host.
std::shared_ptr<GlooDevice> make_gloo_device(const std::string& address);

/// Connects the members to each other.
/// Collective: the members; blocks.
/// Throws: CommError if a member does not connect within the timeout, or
/// if the rendezvous is cancelled.
std::shared_ptr<Backend> make_gloo_backend(
    GroupMembers members,
    const GroupRendezvous& rendezvous,
    const std::shared_ptr<GlooDevice>& device);

} // namespace weft::mesh
