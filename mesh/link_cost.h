#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/device_mesh.h"

namespace weft::mesh {

/// The cost of a message between two ranks: a latency, and its bytes divided by
/// a bandwidth.
/// Source: Thakur, Rabenseifner and Gropp, Optimization of Collective
/// Communication Operations in MPICH (2005), section 3.
struct LinkCost {
  /// Unit: microseconds.
  double latency_us = 0;
  /// Unit: 1e9 bytes/s, one way.
  double bandwidth_gb_s = 0;

  bool operator==(const LinkCost&) const = default;
};

/// Returns the default link cost of a backend ("gloo", "shm", "nccl", "fake").
/// It depends on the arguments alone, so that all ranks, restarts and machines
/// plan identically. `between_hosts` selects the network's cost.
LinkCost default_link_cost(
    std::string_view backend,
    bool between_hosts = false);

/// The collectives of Communicator that move data.
enum class Collective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
};
/// Returns "all_reduce", ... as in the flight recorder.
std::string_view to_string(Collective kind);

/// Returns the bytes that one rank sends in a collective of `ranks` ranks.
/// `bytes` is the size of the rank's larger side, as in the flight recorder
/// (the output of an all_gather, the input of a reduce_scatter, one rank's data
/// of an all_to_all).
double sent_bytes(Collective kind, int64_t ranks, double bytes);

/// Returns the time of a collective in microseconds: one latency per level of a
/// tree, plus a ring's bytes divided by the bandwidth. 0 for one rank.
double collective_us(
    Collective kind,
    int64_t ranks,
    double bytes,
    const LinkCost& link);

/// Returns the link cost of `mesh_dim`. A flattened mesh uses the maximum of
/// its backend's default and the costs set for its root.
LinkCost link_cost(const DeviceMesh& mesh, int64_t mesh_dim);

/// Sets the link cost of `mesh_dim_name` for the root of `mesh` and all its
/// slices. Must be called on all ranks with the same value before the first
/// DTensor op.
/// Throws: c10::ValueError if the latency is not finite or negative, the
/// bandwidth is not finite or not positive, or the mesh dim does not exist.
void set_link_cost(
    const DeviceMesh& mesh,
    std::string_view mesh_dim_name,
    const LinkCost& cost);

/// Throws: c10::ValueError like set_link_cost(); `where` names the link.
void check_link_cost(std::string_view where, const LinkCost& cost);

} // namespace weft::mesh
