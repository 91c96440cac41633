#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// The lists in Slurm's variables. `variable` is the one that `list` was read
/// from, for messages.
namespace weft::mesh {

/// The hosts in order: "gpu-a[1-2]b[3,05],login" is gpu-a1b3, gpu-a1b05,
/// gpu-a2b3, gpu-a2b05, login. Leading zeros are kept.
/// Throws: UsageError naming the variable, the list and what is wrong with it.
/// Source: slurm.schedmd.com/slurm.conf.html, NodeName.
std::vector<std::string> expand_host_list(
    const std::string& variable,
    std::string_view list);

/// A number for each host in order: "4(x2),3" is 4, 4, 3.
/// Throws: UsageError naming the variable, the list and what is wrong with it.
/// Source: slurm.schedmd.com/sbatch.html, SLURM_TASKS_PER_NODE.
std::vector<int64_t> expand_task_counts(
    const std::string& variable,
    std::string_view list);

} // namespace weft::mesh
