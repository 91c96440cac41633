#pragma once

#include <cstdint>
#include <optional>

#include "base/usable_cores.h"
#include "mesh/bootstrap/job_rank.h"

namespace weft::recipes {

/// Returns the number of threads for the operators of one rank. Empty leaves
/// libtorch's default, which is OMP_NUM_THREADS or all cores. Ranks that share
/// a host divide its `cores` (base/usable_cores.h) among them, at least one
/// each, like under weftrun. In a Slurm job the value of `srun --cpus-per-task`
/// takes precedence. With all cores for each rank, the ranks slow each other
/// down (80 times slower with 4 ranks on 2 cores).
/// Throws: mesh::UsageError if SLURM_CPUS_PER_TASK is not a number.
std::optional<int> threads_per_rank(
    const mesh::JobRank& job,
    const mesh::VariableLookup& lookup,
    int64_t cores = base::usable_cores());

} // namespace weft::recipes
