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

/// Connects to the job's store. Its keys are separate from those of other jobs
/// and earlier starts. Rank 0 serves the store unless the launcher's agent
/// does: on loopback if MASTER_ADDR is a loopback address, otherwise on every
/// address.
/// Collective: all ranks; blocks until the store is served.
/// Throws: CommError if it cannot be served or does not answer in time.
c10::intrusive_ptr<c10d::Store> connect_store(
    const JobEnvironment& job,
    std::chrono::milliseconds timeout);

/// Publishes in the store an address of this rank that other hosts can reach,
/// if it has one. Must be called before listening_address().
void publish_address(c10d::Store& store, const JobEnvironment& job);

/// Returns the address on which this rank's groups listen: loopback if
/// MASTER_ADDR is, otherwise the address of this host's route to MASTER_ADDR.
/// Must be called after all ranks have met. See Note [A host's own name].
std::string listening_address(c10d::Store& store, const JobEnvironment& job);

/// Closes the listening socket inherited from weftrun if this process serves no
/// store.
void drop_inherited_listener(uint16_t port);

} // namespace weft::mesh
