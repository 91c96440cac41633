#include "train/setup/threads.h"

#include <algorithm>

#include "mesh/bootstrap/env.h"

namespace weft::train {

std::optional<int> threads_per_rank(
    const mesh::JobRank& job,
    const mesh::VariableLookup& lookup,
    int64_t cores) {
  if (lookup("OMP_NUM_THREADS")) {
    return std::nullopt;
  }
  constexpr const char* kSlurms = "SLURM_CPUS_PER_TASK";
  if (const auto cores = lookup(kSlurms);
      cores && job.source == mesh::JobSource::kSlurm) {
    return static_cast<int>(mesh::env::to_int(kSlurms, *cores, 1, 1 << 16));
  }
  if (job.local_world_size > 1) {
    return static_cast<int>(std::max<int64_t>(cores / job.local_world_size, 1));
  }
  return std::nullopt;
}

} // namespace weft::train
