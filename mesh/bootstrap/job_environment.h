#pragma once

#include <cstdint>
#include <string>

#include "mesh/bootstrap/job_rank.h"

namespace weft::mesh {

/// The rank and the rendezvous address. With one rank the address may be empty
/// and the port 0.
struct JobEnvironment : JobRank {
  /// The host of rank 0's store.
  std::string master_address;
  /// The port of rank 0's store.
  uint16_t master_port = 0;
  /// The variables that the port was derived from, e.g. "SLURM_JOB_ID=7 and
  /// SLURM_STEP_ID=0". Empty if MASTER_PORT is set.
  std::string port_origin;
  /// A prefix that separates this job's keys from another job's in one store.
  /// It may be empty.
  std::string job_key;
};

/// Ports derived from a job's number lie in [kFirstJobPort, kFirstJobPort +
/// kJobPorts), below Linux's ephemeral ports.
inline constexpr int64_t kFirstJobPort = 20000;
/// The number of these ports.
inline constexpr int64_t kJobPorts = 10000;

/// Reads the variables of the innermost launcher, MASTER_ADDR and MASTER_PORT
/// or their substitutes.
/// Throws: UsageError like read_job_rank(), or if the rendezvous address is
/// unknown; the message names the variable to set.
JobEnvironment read_job_environment(const VariableLookup& lookup);

/// Returns the environment of this process. Prints its note to stderr once.
JobEnvironment current_job_environment();

} // namespace weft::mesh
