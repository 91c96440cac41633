#pragma once

#include <memory>
#include <string>

#include "mesh/bootstrap/cancellable_store.h"
#include "mesh/communicator/backend.h"

namespace weft::mesh {

class ShmProgress;

/// Creates the ShmProgress that all groups of one rank share.
std::shared_ptr<ShmProgress> make_shm_progress(
    int64_t local_ranks,
    int64_t cores);

/// Identifies what two processes must have in common to share memory: host,
/// boot, namespaces and user. Two ranks with equal values may be in one shm
/// group. Empty if the system does not allow this process to share memory.
std::string shm_domain();

/// Creates a backend that communicates through shared memory between ranks of
/// one host. Reductions add in rank order; Half and BFloat16 accumulate in
/// float.
/// Collective: the group's members, which must have the same shm_domain();
/// blocks.
std::shared_ptr<Backend> make_shm_backend(
    GroupMembers members,
    const GroupRendezvous& rendezvous,
    const std::shared_ptr<ShmProgress>& progress);

} // namespace weft::mesh
