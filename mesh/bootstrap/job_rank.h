#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace weft::mesh {

/// Gives the value of a variable; none where it is unset or empty.
using VariableLookup =
    std::function<std::optional<std::string>(const char* name)>;

/// Whose variables were read.
enum class JobSource {
  kNone,
  kTorchrun,
  kOpenMpi,
  kHydra,
  kSlurm,
  kPmi,
  kPmix
};

/// "torchrun", "Slurm", ...
const char* to_string(JobSource source);

/// Which rank of how many this process is, in the job and on its host.
struct JobRank {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  /// kNone: nobody's; one rank.
  JobSource source = JobSource::kNone;
  /// What the user should know, or empty.
  std::string note;
};

/// Reads the variables of the launcher nearest to the process. See Note [Which
/// launcher]; docs/clusters.md is the user's side of it.
/// Throws: UsageError naming the variables that are missing, malformed or do
/// not fit each other, with their values.
JobRank read_job_rank(const VariableLookup& lookup);

/// This process's. A note is said on stderr, once.
JobRank current_job_rank();

/// Says the note on stderr, once a process.
void print_note_once(const JobRank& job);

} // namespace weft::mesh
