#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Parsers of the lists in Slurm's variables. `variable` is the name of the
/// variable, for error messages.
namespace weft::mesh {

/// Returns the hosts in order: "gpu-a[1-2]b[3,05],login" is gpu-a1b3,
/// gpu-a1b05, gpu-a2b3, gpu-a2b05, login. Leading zeros are kept.
/// Throws: UsageError naming the variable, the list and the error.
/// Source: slurm.schedmd.com/slurm.conf.html, NodeName.
std::vector<std::string> expand_host_list(
    const std::string& variable,
    std::string_view list);

/// Returns the task count of each host in order: "4(x2),3" is 4, 4, 3.
/// Throws: UsageError naming the variable, the list and the error.
/// Source: slurm.schedmd.com/sbatch.html, SLURM_TASKS_PER_NODE.
std::vector<int64_t> expand_task_counts(
    const std::string& variable,
    std::string_view list);

} // namespace weft::mesh
