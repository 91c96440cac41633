#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
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

/// Ranks that are kept for several bodies. Each is a thread of this process
/// with its own world, which communicates through shared memory or, with the
/// backend "gloo", through sockets on loopback. Suites of many short cases use
/// one object for all of them: to create a world takes longer than such a case.
class Ranks {
 public:
  /// Starts `n` ranks. `timeout` limits every collective and rendezvous.
  explicit Ranks(
      int n,
      std::chrono::milliseconds timeout = std::chrono::seconds(30));
  /// Like Ranks(n, timeout), with other options.
  Ranks(int n, const mesh::WorldOptions& options);
  /// Destroys the worlds. No rank may be in run().
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Runs `body` on all ranks and returns when all are done. An exception on
  /// one rank aborts the worlds of all, so that no peer waits for it in a
  /// collective or in the creation of a group; they cannot run another body
  /// then.
  /// Throws: RankError for the first rank that failed; std::logic_error if an
  /// earlier body did.
  void run(const std::function<void(RankContext&)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs `body` on `n` ranks of its own (see Ranks::run()). `timeout` limits
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
