#include "launcher/process/numa_binding.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>

#include <sched.h>

#include <fmt/format.h>

#include "base/first_line.h"
#include "base/parse_int.h"
#include "launcher/process/error.h"

namespace weft::launcher {
namespace {

namespace fs = std::filesystem;
using Cpus = std::set<int>;

Cpus common(const Cpus& a, const Cpus& b) {
  Cpus result;
  std::ranges::set_intersection(a, b, std::inserter(result, result.end()));
  return result;
}

class Topology {
 public:
  explicit Topology(const NumaHost& host)
      : allowed_(host.allowed_cpus),
        system_(host.root / "sys" / "devices" / "system") {
    const auto online = base::first_line(system_ / "node" / "online");
    for (const int node : parse_cpu_list(online.value_or(""))) {
      const auto cpus = base::first_line(
          system_ / "node" / fmt::format("node{}", node) / "cpulist");
      nodes_[node] = common(parse_cpu_list(cpus.value_or("")), allowed_);
    }
    // Removes nodes without usable CPUs. Some nodes have only memory, and a
    // container may not be allowed to use others.
    std::erase_if(nodes_, [](const auto& node) { return node.second.empty(); });
    if (nodes_.empty()) {
      nodes_[0] = allowed_;
    }
  }

  const std::map<int, Cpus>& nodes() const { return nodes_; }

  int socket(int cpu) const {
    const auto text =
        base::first_line(of_cpu(cpu) / "topology/physical_package_id");
    return base::parse_leading_int<int>(text.value_or("0")).value_or(0);
  }
  /// Returns the CPUs by core. The key is the first CPU of the core.
  std::map<int, Cpus> cores(const Cpus& cpus) const {
    std::map<int, Cpus> groups;
    for (const int cpu : cpus) {
      const auto text =
          base::first_line(of_cpu(cpu) / "topology/thread_siblings_list");
      groups[first_of(text, cpu)].insert(cpu);
    }
    return groups;
  }
  /// Returns the groups of CPUs that share the last-level cache, the largest
  /// first.
  std::vector<Cpus> complexes(const Cpus& cpus) const {
    std::map<int, Cpus> groups;
    for (const int cpu : cpus) {
      groups[first_of(last_cache(cpu), cpu)].insert(cpu);
    }
    std::vector<Cpus> result;
    for (auto& [first, group] : groups) {
      result.push_back(std::move(group));
    }
    std::ranges::stable_sort(result, std::greater<>(), [](const Cpus& group) {
      return group.size();
    });
    return result;
  }

 private:
  fs::path of_cpu(int cpu) const {
    return system_ / "cpu" / fmt::format("cpu{}", cpu);
  }
  static int first_of(const std::optional<std::string>& list, int cpu) {
    const Cpus cpus = parse_cpu_list(list.value_or(""));
    return cpus.empty() ? cpu : *cpus.begin();
  }
  std::optional<std::string> last_cache(int cpu) const {
    std::optional<std::string> shared;
    int highest = -1;
    for (int index = 0;; ++index) {
      const fs::path cache =
          of_cpu(cpu) / "cache" / fmt::format("index{}", index);
      const auto level = base::first_line(cache / "level");
      if (!level) {
        return shared;
      }
      if (base::first_line(cache / "type") != "Instruction" &&
          base::parse_leading_int<int>(*level).value_or(0) > highest) {
        highest = base::parse_leading_int<int>(*level).value_or(0);
        shared = base::first_line(cache / "shared_cpu_list");
      }
    }
  }

  Cpus allowed_;
  fs::path system_;
  std::map<int, Cpus> nodes_;
};

/// Returns the node of each local rank.
std::vector<int>
place(int worker_count, const NumaHost& host, const Topology& topology) {
  std::vector<int> with_cpus;
  for (const auto& [node, cpus] : topology.nodes()) {
    with_cpus.push_back(node);
  }
  const auto count = static_cast<int>(with_cpus.size());
  std::vector<int> nodes;
  for (int rank = 0; rank < worker_count; ++rank) {
    const bool has_device = rank < static_cast<int>(host.device_nodes.size()) &&
                            topology.nodes().contains(host.device_nodes[rank]);
    nodes.push_back(
        has_device ? host.device_nodes[rank]
                   : with_cpus[rank * count / worker_count]);
  }
  return nodes;
}

Cpus of_socket(int node, const Topology& topology) {
  const int socket = topology.socket(*topology.nodes().at(node).begin());
  Cpus result;
  for (const auto& [other, cpus] : topology.nodes()) {
    if (topology.socket(*cpus.begin()) == socket) {
      result.insert(cpus.begin(), cpus.end());
    }
  }
  return result;
}

/// Returns share `index` of `count` of the node's cores. The first shares get
/// one more core if the number is not divisible.
Cpus share_of(int node, int index, int count, const Topology& topology) {
  const auto cores = topology.cores(topology.nodes().at(node));
  const auto total = static_cast<int>(cores.size());
  if (total < count) {
    throw LaunchError(fmt::format(
        "--numa-binding exclusive: NUMA node {} has {} cores for {} workers. "
        "Start fewer workers, or use --numa-binding node.",
        node,
        total,
        count));
  }
  const int extra = total % count;
  const int begin = index * (total / count) + std::min(index, extra);
  const int size = total / count + (index < extra ? 1 : 0);
  Cpus result;
  auto core = std::next(cores.begin(), begin);
  for (int i = 0; i < size; ++i, ++core) {
    result.insert(core->second.begin(), core->second.end());
  }
  return result;
}

} // namespace

NumaBinding parse_numa_binding(const std::string& text) {
  const std::map<std::string, NumaBinding> kNames{
      {"", NumaBinding::kNone},
      {"node", NumaBinding::kNode},
      {"socket", NumaBinding::kSocket},
      {"exclusive", NumaBinding::kExclusive},
      {"core-complex", NumaBinding::kCoreComplex}};
  const auto found = kNames.find(text);
  if (found == kNames.end()) {
    throw LaunchError(fmt::format(
        "--numa-binding {}: expected node, socket, exclusive or core-complex.",
        text));
  }
  return found->second;
}

std::vector<std::set<int>>
numa_cpus(NumaBinding binding, int worker_count, const NumaHost& host) {
  if (binding == NumaBinding::kNone) {
    return {};
  }
  const Topology topology(host);
  const auto nodes = place(worker_count, host, topology);
  std::map<int, int> placed;
  std::vector<Cpus> result;
  for (const int node : nodes) {
    const int index = placed[node]++;
    const auto& cpus = topology.nodes().at(node);
    if (binding == NumaBinding::kNode) {
      result.push_back(cpus);
    } else if (binding == NumaBinding::kSocket) {
      result.push_back(of_socket(node, topology));
    } else if (binding == NumaBinding::kExclusive) {
      const auto count = std::ranges::count(nodes, node);
      result.push_back(
          share_of(node, index, static_cast<int>(count), topology));
    } else {
      const auto complexes = topology.complexes(cpus);
      result.push_back(complexes[index % complexes.size()]);
    }
  }
  return result;
}

NumaHost current_numa_host() {
  NumaHost host;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) {
    throw_errno("sched_getaffinity");
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &cpus)) {
      host.allowed_cpus.insert(cpu);
    }
  }
  host.device_nodes =
      device_numa_nodes(host.root, std::getenv("CUDA_VISIBLE_DEVICES"));
  return host;
}

std::vector<int> device_numa_nodes(const fs::path& root, const char* visible) {
  std::set<std::string> addresses;
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(root / "proc/driver/nvidia/gpus", error)) {
    addresses.insert(entry.path().filename());
  }
  std::vector<int> nodes;
  for (const auto& address : addresses) {
    const auto text =
        base::first_line(root / "sys/bus/pci/devices" / address / "numa_node");
    // A host with one node has -1.
    nodes.push_back(std::max(
        0, base::parse_leading_int<int>(text.value_or("0")).value_or(0)));
  }
  if (visible == nullptr) {
    return nodes;
  }
  std::vector<int> chosen;
  std::istringstream list(visible);
  for (std::string part; std::getline(list, part, ',');) {
    const auto index = base::parse_leading_int<int>(part);
    if (!index || *index < 0 || *index >= static_cast<int>(nodes.size())) {
      // CUDA also ends the list here. UUIDs are not looked up.
      break;
    }
    chosen.push_back(nodes[static_cast<size_t>(*index)]);
  }
  return chosen;
}

std::set<int> parse_cpu_list(const std::string& text) {
  std::set<int> cpus;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t dash = part.find('-');
    const auto first = base::parse_leading_int<int>(part);
    const auto last = dash == std::string::npos
                          ? first
                          : base::parse_leading_int<int>(part.substr(dash + 1));
    for (int cpu = first.value_or(0); first && last && cpu <= *last; ++cpu) {
      cpus.insert(cpu);
    }
  }
  return cpus;
}

void bind_to_cpus(const std::set<int>& cpus) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int cpu : cpus) {
    CPU_SET(cpu, &mask);
  }
  sched_setaffinity(0, sizeof(mask), &mask);
}

} // namespace weft::launcher
