#include "mesh/link_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>

#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

// The costs that set_link_cost() has stored, by name of the root's mesh dim.
struct LinkTable {
  std::mutex mutex;
  std::map<std::string, LinkCost, std::less<>> costs;
};

double tree_levels(int64_t ranks) {
  return std::bit_width(static_cast<uint64_t>(ranks - 1));
}

// Returns the number of messages that must follow each other.
double latencies(Collective kind, int64_t ranks) {
  const bool twice = kind == Collective::kAllReduce;
  return (twice ? 2 : 1) * tree_levels(ranks);
}

} // namespace

LinkCost default_link_cost(std::string_view backend, bool between_hosts) {
  if (backend == "nccl") {
    return between_hosts ? LinkCost{.latency_us = 12, .bandwidth_gb_s = 45}
                         : LinkCost{.latency_us = 4, .bandwidth_gb_s = 350};
  }
  if (between_hosts) {
    return {.latency_us = 50, .bandwidth_gb_s = 1.2};
  }
  if (backend == "shm") {
    return {.latency_us = 3, .bandwidth_gb_s = 6};
  }
  return {.latency_us = 40, .bandwidth_gb_s = 1.5};
}

std::string_view to_string(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
  }
  return "collective";
}

double sent_bytes(Collective kind, int64_t ranks, double bytes) {
  const double others = bytes * static_cast<double>(ranks - 1) /
                        static_cast<double>(std::max<int64_t>(ranks, 1));
  switch (kind) {
    case Collective::kAllReduce:
      return 2 * others;
    case Collective::kBroadcast:
      return ranks > 1 ? bytes : 0;
    default:
      return others;
  }
}

double collective_us(
    Collective kind,
    int64_t ranks,
    double bytes,
    const LinkCost& link) {
  if (ranks <= 1) {
    return 0;
  }
  constexpr double kBytesPerMicrosecond = 1e3;
  return latencies(kind, ranks) * link.latency_us +
         sent_bytes(kind, ranks, bytes) /
             (link.bandwidth_gb_s * kBytesPerMicrosecond);
}

namespace {

// Returns the backend whose cost is used for planning. Some groups of a mesh
// dim may share a host and others not. All ranks plan with the more expensive
// link, so that the plan does not depend on where the ranks run.
std::string_view planned_as(std::string_view backend) {
  return backend == "shm" ? "gloo" : backend;
}

} // namespace

LinkCost link_cost(const DeviceMesh& mesh, int64_t mesh_dim) {
  const auto root = mesh.root();
  auto& table = root.extension<LinkTable>();
  const auto& name = mesh.mesh_dim_names()[mesh_dim];
  const std::lock_guard lock(table.mutex);
  if (const auto found = table.costs.find(name); found != table.costs.end()) {
    return found->second;
  }
  LinkCost cost = default_link_cost(planned_as(mesh.group(mesh_dim).backend()));
  if (!root.has_mesh_dim(name)) {
    for (const auto& [other, given] : table.costs) {
      cost.latency_us = std::max(cost.latency_us, given.latency_us);
      cost.bandwidth_gb_s = std::min(cost.bandwidth_gb_s, given.bandwidth_gb_s);
    }
  }
  return cost;
}

void set_link_cost(
    const DeviceMesh& mesh,
    std::string_view mesh_dim_name,
    const LinkCost& cost) {
  const auto root = mesh.root();
  root.mesh_dim(mesh_dim_name);
  check_link_cost(
      detail::concat(mesh_dim_name, " (", mesh.describe_rank(), ")"), cost);
  auto& table = root.extension<LinkTable>();
  const std::lock_guard lock(table.mutex);
  table.costs.insert_or_assign(std::string(mesh_dim_name), cost);
}

void check_link_cost(std::string_view where, const LinkCost& cost) {
  TORCH_CHECK_VALUE(
      std::isfinite(cost.latency_us) && cost.latency_us >= 0,
      "[cost_model] ",
      where,
      ": latency_us is ",
      cost.latency_us,
      ". Give a finite number of microseconds, at least 0.");
  TORCH_CHECK_VALUE(
      std::isfinite(cost.bandwidth_gb_s) && cost.bandwidth_gb_s > 0,
      "[cost_model] ",
      where,
      ": bandwidth_gb_s is ",
      cost.bandwidth_gb_s,
      ". Give a finite number of 1e9 bytes a second, above 0.");
}

} // namespace weft::mesh
