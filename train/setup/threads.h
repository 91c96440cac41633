#pragma once

#include <cstdint>
#include <optional>

#include "base/usable_cores.h"
#include "mesh/bootstrap/job_rank.h"

namespace weft::train {

/// Returns the number of threads for the operators of one rank, or nothing to
/// keep libtorch's default, which is OMP_NUM_THREADS or all cores. In a Slurm
/// job it is the value of `srun --cpus-per-task`, if there is one. Otherwise it
/// is `cores` (base/usable_cores.h) divided by the ranks on the host, at least
/// 1, as weftrun does. If each rank used all cores, the ranks would slow each
/// other down (80 times slower with 4 ranks on 2 cores).
/// Throws: mesh::UsageError if SLURM_CPUS_PER_TASK is not a number.
std::optional<int> threads_per_rank(
    const mesh::JobRank& job,
    const mesh::VariableLookup& lookup,
    int64_t cores = base::usable_cores());

} // namespace weft::train
