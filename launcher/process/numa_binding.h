#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace weft::launcher {

/// The CPUs that a worker may use, relative to its NUMA node.
/// Source: torch/numa/binding.py.
enum class NumaBinding {
  kNone,
  /// All CPUs of the node.
  kNode,
  /// All CPUs of the node's socket.
  kSocket,
  /// Exclusive cores: the node's cores are divided among its workers.
  kExclusive,
  /// CPUs that share one last-level cache.
  kCoreComplex
};

/// Parses --numa-binding. Empty means kNone.
/// Throws: LaunchError listing the choices if the text is invalid.
NumaBinding parse_numa_binding(const std::string& text);

/// The properties of a host that determine a binding.
struct NumaHost {
  /// The CPUs that this process may use.
  std::set<int> allowed_cpus;
  /// The NUMA nodes of the accelerators, by local rank. Empty if there are
  /// none.
  std::vector<int> device_nodes;
  /// The folder that contains sys/devices/system.
  std::filesystem::path root = "/";
};

/// Returns the properties of this host.
NumaHost current_numa_host();

/// Returns the CPUs of each of `worker_count` local ranks: on the node of the
/// rank's accelerator or, without one, with the ranks spread over the nodes in
/// order. Empty for kNone.
/// Throws: LaunchError if a worker would get no CPU.
std::vector<std::set<int>>
numa_cpus(NumaBinding binding, int worker_count, const NumaHost& host);

/// Returns the NUMA nodes of the NVIDIA devices in order of their PCI
/// addresses. If `visible` (CUDA_VISIBLE_DEVICES) is not null, returns only the
/// nodes of the devices in it.
std::vector<int> device_numa_nodes(
    const std::filesystem::path& root,
    const char* visible);

/// Parses a CPU list: "0-2,5" is {0, 1, 2, 5}. Entries that are not numbers are
/// ignored.
std::set<int> parse_cpu_list(const std::string& text);

/// Binds this thread, and what it starts, to the CPUs. To be called in a forked
/// child.
void bind_to_cpus(const std::set<int>& cpus);

} // namespace weft::launcher
