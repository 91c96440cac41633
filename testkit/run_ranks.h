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

} // namespace weft

/// Runs code of several ranks in one process, for tests of users' programs. It
/// needs no test framework: a failure is an exception.
namespace weft::testkit {

// Defined outside of testkit, so that a call of a framework's own run_ranks()
// does not find the one here by its argument.
using weft::RankContext;

/// One rank of run_ranks() failed; what() is "rank 1 threw: ...", without a
/// backtrace.
class RankError : public std::runtime_error {
 public:
  RankError(int64_t rank, std::string message, std::exception_ptr cause)
      : std::runtime_error(
            "rank " + std::to_string(rank) + " threw: " + message),
        rank_(rank),
        message_(std::move(message)),
        cause_(std::move(cause)) {}

  int64_t rank() const { return rank_; }
  /// Without the rank.
  const std::string& message() const { return message_; }
  /// What that rank threw.
  const std::exception_ptr& cause() const { return cause_; }

 private:
  int64_t rank_;
  std::string message_;
  std::exception_ptr cause_;
};

/// Runs `body` on `n` ranks, each a thread of this process with a world of its
/// own, through shared memory or, if `backend` is "gloo", over sockets on
/// loopback. An exception on one rank aborts the worlds of all, so that no
/// collective of another rank waits for it, and no group that is being made.
/// Worlds are torn down when all ranks are done. `timeout` bounds every
/// collective and rendezvous. Throws: RankError for the first rank that failed.
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

} // namespace weft::testkit
