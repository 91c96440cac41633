#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace weft::test {

/// What one rank of a test has.
struct RankContext {
  int64_t rank;
  int64_t world_size;
  mesh::World world;

  /// Collective: all ranks.
  mesh::DeviceMesh mesh(
      std::vector<int64_t> shape,
      std::vector<std::string> names) const;
};

/// Runs `body` on `n` ranks, each a thread of this process with a world of its
/// own, through shared memory or, if `backend` is "gloo", over sockets on
/// loopback. An exception or a fatal assertion on one rank fails the test and
/// ends the others' collectives. Worlds are torn down when all ranks are done.
/// `timeout` bounds every collective and rendezvous.
void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(30),
    const std::string& backend = "cpu");
/// With other options, too.
void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    const mesh::WorldOptions& options);

} // namespace weft::test
