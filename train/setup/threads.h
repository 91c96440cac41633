#pragma once

#include <cstdint>
#include <optional>

#include "base/usable_cores.h"
#include "mesh/bootstrap/job_rank.h"

namespace weft::recipes {

/// How many threads one rank's operators take; none: leave libtorch its own
/// choice, which is OMP_NUM_THREADS or all cores. As under weftrun, ranks that
/// share a host divide its `cores` (base/usable_cores.h) among them, at least
/// one each, or take what `srun --cpus-per-task` asked for: with all cores each
/// they only stand in each other's way (80 times slower with 4 ranks on 2
/// cores).
/// Throws: mesh::UsageError if SLURM_CPUS_PER_TASK is no number.
std::optional<int> threads_per_rank(
    const mesh::JobRank& job,
    const mesh::VariableLookup& lookup,
    int64_t cores = base::usable_cores());

} // namespace weft::recipes
