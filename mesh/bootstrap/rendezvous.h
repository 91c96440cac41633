#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "mesh/bootstrap/job_environment.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

/// The job's store, its keys apart from those of other jobs and of earlier
/// starts. Rank 0 serves it, on loopback alone if MASTER_ADDR is a loopback
/// address, else at every address, unless the launcher's agent does.
/// Collective: all ranks; blocks until rank 0 serves.
/// Throws: CommError if it does not in time, or cannot.
c10::intrusive_ptr<c10d::Store> connect_store(
    const JobEnvironment& job,
    std::chrono::milliseconds timeout);

/// Leaves in the store an address of this rank that other hosts can reach, if
/// it has one. Before the ranks meet.
void publish_address(c10d::Store& store, const JobEnvironment& job);

/// The address that this rank's groups listen at: loopback if MASTER_ADDR is,
/// else this host's on the way to MASTER_ADDR. See Note [A host's own name].
/// After the ranks have met.
std::string listening_address(c10d::Store& store, const JobEnvironment& job);

/// Closes the listening socket that weftrun passed on, where no store is
/// served.
void drop_inherited_listener(uint16_t port);

} // namespace weft::mesh
