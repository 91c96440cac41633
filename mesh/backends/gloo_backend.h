#pragma once

#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "mesh/communicator/backend.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// A listening socket and the thread that serves it, shared by all groups of a
/// rank.
struct GlooDevice;

/// Listens at `address` (a name or number) on a port that the system chooses.
/// Throws: CommError if the address does not belong to this host.
std::shared_ptr<GlooDevice> make_gloo_device(const std::string& address);

/// Connects the members to each other through `store`. No other group may use
/// the keys of `store`.
/// Collective: the members; blocks.
/// Throws: CommError if a member does not connect within the timeout.
std::shared_ptr<Backend> make_gloo_backend(
    GroupMembers members,
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::shared_ptr<GlooDevice>& device);

} // namespace weft::mesh
