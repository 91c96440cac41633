#pragma once

#include <cstdint>
#include <string>

#include "mesh/bootstrap/job_rank.h"

namespace weft::mesh {

/// A rank and where all ranks meet. A world of one rank needs no such place:
/// address and port may be empty and 0.
struct JobEnvironment : JobRank {
  std::string master_address;
  uint16_t master_port = 0;
  /// What the port was made from, e.g. "SLURM_JOB_ID=7 and SLURM_STEP_ID=0";
  /// empty if MASTER_PORT says it.
  std::string port_origin;
  /// Tells this job's keys from another's in one store; may be empty.
  std::string job_key;
};

/// Ports that are made from a job's number lie in [kFirstJobPort,
/// kFirstJobPort + kJobPorts): below those that Linux gives to connections.
inline constexpr int64_t kFirstJobPort = 20000;
inline constexpr int64_t kJobPorts = 10000;

/// Reads the variables of the launcher nearest to the process, and MASTER_ADDR
/// and MASTER_PORT, or what takes their place.
/// Throws: UsageError as read_job_rank, and if nothing says where the ranks
/// meet, naming what to set.
JobEnvironment read_job_environment(const VariableLookup& lookup);

/// This process's. A note is said on stderr, once.
JobEnvironment current_job_environment();

} // namespace weft::mesh
