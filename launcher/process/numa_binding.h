#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace weft::launcher {

/// On which CPUs of its NUMA node a worker may run.
/// Source: torch/numa/binding.py.
enum class NumaBinding {
  kNone,
  /// All of the node's.
  kNode,
  /// All of the node's socket.
  kSocket,
  /// Cores of its own, the node's shared out among its workers.
  kExclusive,
  /// Those that share one last-level cache.
  kCoreComplex
};

/// Of --numa-binding; empty: kNone.
/// Throws: LaunchError naming the choices.
NumaBinding parse_numa_binding(const std::string& text);

/// What a binding depends on.
struct NumaHost {
  /// CPUs that this process may use.
  std::set<int> allowed_cpus;
  /// NUMA nodes of the accelerators, by local rank; empty: there are none.
  std::vector<int> device_nodes;
  /// Where the files below sys/devices/system are.
  std::filesystem::path root = "/";
};

/// This host as it is.
NumaHost current_numa_host();

/// The CPUs of each of `worker_count` local ranks: on the node of its
/// accelerator or, without one, with the ranks spread over the nodes in order.
/// Empty for kNone.
/// Throws: LaunchError if a worker would get no CPU.
std::vector<std::set<int>>
numa_cpus(NumaBinding binding, int worker_count, const NumaHost& host);

/// Nodes of NVIDIA's devices in the order of their PCI addresses, of those
/// that CUDA_VISIBLE_DEVICES (`visible`; may be null) lists.
std::vector<int> device_numa_nodes(
    const std::filesystem::path& root,
    const char* visible);

/// {0, 1, 2, 5} of "0-2,5". What is no number is left out.
std::set<int> parse_cpu_list(const std::string& text);

/// Binds this thread, and what it starts, to the CPUs. For a forked child.
void bind_to_cpus(const std::set<int>& cpus);

} // namespace weft::launcher
