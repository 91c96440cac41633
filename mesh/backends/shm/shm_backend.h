#pragma once

#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "mesh/communicator/backend.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

class ShmProgress;

/// What all groups of one rank share; see ShmProgress.
std::shared_ptr<ShmProgress> make_shm_progress(
    int64_t local_ranks,
    int64_t cores);

/// Names what processes must have in common to share memory: the host, its
/// start, the namespaces and the user. Equal for two ranks that may be in one
/// shm group; empty where the system does not let this process share memory.
std::string shm_domain();

/// Collectives between ranks of one host through shared memory. Sums are taken
/// in rank order wherever a value lies, halves and bfloat16 in float.
/// Collective: the group's members, all of one shm_domain(); blocks.
std::shared_ptr<Backend> make_shm_backend(
    GroupMembers members,
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::shared_ptr<ShmProgress>& progress);

} // namespace weft::mesh
