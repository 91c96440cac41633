#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace weft {

/// The context of one rank in a test.
struct RankContext {
  /// The rank, in [0, world_size).
  int64_t rank;
  /// The number of ranks.
  int64_t world_size;
  /// The world of all ranks.
  mesh::World world;

  /// Creates a mesh of the world's ranks.
  /// Collective: all ranks.
  mesh::DeviceMesh mesh(
      std::vector<int64_t> shape,
      std::vector<std::string> names) const;
};

} // namespace weft

/// Runs the code of several ranks in one process, for tests of user programs.
/// Needs no test framework: failures are exceptions.
namespace weft::testkit {

// Defined outside of testkit, so that a call of a framework's own run_ranks()
// does not find the one here by its argument.
using weft::RankContext;

/// Thrown if a rank of run_ranks() failed. what() is "rank 1 threw: ...",
/// without a backtrace.
class RankError : public std::runtime_error {
 public:
  /// Creates the error of `rank`, which `cause` ended.
  RankError(int64_t rank, std::string message, std::exception_ptr cause)
      : std::runtime_error(
            "rank " + std::to_string(rank) + " threw: " + message),
        rank_(rank),
        message_(std::move(message)),
        cause_(std::move(cause)) {}

  /// The rank that failed.
  int64_t rank() const { return rank_; }
  /// The message without the rank.
  const std::string& message() const { return message_; }
  /// The exception that the rank threw.
  const std::exception_ptr& cause() const { return cause_; }

 private:
  int64_t rank_;
  std::string message_;
  std::exception_ptr cause_;
};

/// Runs `body` on `n` ranks. Each is a thread of this process with its own
/// world, which communicates through shared memory or, if `backend` is "gloo",
/// through sockets on loopback. An exception on one rank aborts the worlds of
/// all ranks, so that no peer waits for it in a collective or in the creation
/// of a group. Worlds are destroyed when all ranks are done. `timeout` limits
/// every collective and rendezvous.
/// Throws: RankError for the first rank that failed.
void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(30),
    const std::string& backend = "cpu");
/// Like run_ranks(n, body, timeout, backend), with other options.
void run_ranks(
    int n,
    const std::function<void(RankContext&)>& body,
    const mesh::WorldOptions& options);

} // namespace weft::testkit
