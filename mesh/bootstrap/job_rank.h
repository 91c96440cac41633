#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace weft::mesh {

/// Returns the value of a variable, or nothing if it is unset or empty.
using VariableLookup =
    std::function<std::optional<std::string>(const char* name)>;

/// The launcher whose variables were read.
enum class JobSource {
  kNone,
  kTorchrun,
  kOpenMpi,
  kHydra,
  kSlurm,
  kPmi,
  kPmix
};

/// Returns "torchrun", "Slurm", ...
const char* to_string(JobSource source);

/// The rank of this process and the number of ranks, in the job and on its
/// host.
struct JobRank {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  /// The ranks that share the cores of this host: local_world_size, or those of
  /// all replica groups that weftrun has started.
  int64_t host_ranks = 1;
  /// kNone means that there is no launcher and one rank.
  JobSource source = JobSource::kNone;
  /// A message for the user, or empty.
  std::string note;
};

/// Reads the variables of the innermost launcher. See Note [Which launcher] and
/// docs/clusters.md.
/// Throws: UsageError naming the variables that are missing, malformed or
/// inconsistent, with their values.
JobRank read_job_rank(const VariableLookup& lookup);

/// Returns the rank of this process. Prints JobRank::note to stderr, once per
/// process.
JobRank current_job_rank();

/// Prints the note to stderr, once per process.
void print_note_once(const JobRank& job);

} // namespace weft::mesh
