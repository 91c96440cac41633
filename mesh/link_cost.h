#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/device_mesh.h"

namespace weft::mesh {

/// What a message costs on the way between two ranks: a latency, and its bytes
/// over a bandwidth.
/// Source: Thakur, Rabenseifner and Gropp, Optimization of Collective
/// Communication Operations in MPICH (2005), section 3.
struct LinkCost {
  /// Microseconds.
  double latency_us = 0;
  /// 1e9 bytes a second, one way.
  double bandwidth_gb_s = 0;

  bool operator==(const LinkCost&) const = default;
};

/// The price list that holds unless somebody says otherwise: a function of the
/// backend's kind ("gloo", "shm", "nccl", "fake") alone, so that all ranks, all
/// restarts and all machines plan alike. `between_hosts` asks for the network's
/// line of it.
LinkCost default_link_cost(
    std::string_view backend,
    bool between_hosts = false);

/// The collectives of Communicator that move values.
enum class Collective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
};
/// "all_reduce", as in the ledger.
std::string_view to_string(Collective kind);

/// What one rank sends in a collective of `ranks` ranks. `bytes`: of the
/// rank's larger side, as in the ledger (the whole of what an all_gather makes,
/// a reduce_scatter reads, an all_to_all has on one rank).
double sent_bytes(Collective kind, int64_t ranks, double bytes);

/// Microseconds that such a collective takes: as many latencies as a tree has
/// levels, and the bytes that a ring sends over the bandwidth. 0 for one rank.
double collective_us(
    Collective kind,
    int64_t ranks,
    double bytes,
    const LinkCost& link);

/// What links along `mesh_dim` cost; those of a flattened mesh the dearest of
/// its backend's and all that were set for the root.
LinkCost link_cost(const DeviceMesh& mesh, int64_t mesh_dim);

/// From now on for `mesh_dim_name` of `mesh`'s root and all meshes cut from it.
/// To be called on all ranks with one value before the first DTensor op.
/// Throws: c10::ValueError unless latency and bandwidth are finite, the one not
/// negative, the other above 0; and for a mesh dim that does not exist.
void set_link_cost(
    const DeviceMesh& mesh,
    std::string_view mesh_dim_name,
    const LinkCost& cost);

/// Throws: c10::ValueError as set_link_cost() does; `where` names the link.
void check_link_cost(std::string_view where, const LinkCost& cost);

} // namespace weft::mesh
