#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "mesh/communicator/communicator.h"
#include "mesh/watchdog/options.h"

namespace c10d {
class Store;
} // namespace c10d

namespace weft::mesh {

struct WorldOptions {
  /// "cpu" (each group through shared memory where its ranks share a host, else
  /// over gloo), "gloo" (the CPU, always over sockets), "nccl" (CUDA; opens
  /// this rank's device) or "fake" (no communication: one process plays one
  /// rank of a world of any size).
  std::string backend = "cpu";
  /// How long a collective or a rendezvous may take.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// The address gloo listens on; empty: loopback when MASTER_ADDR is a
  /// loopback address, else this host's address on the way to MASTER_ADDR.
  std::string bind_address;
  /// How ranks that wait in vain find out why.
  WatchdogOptions watch;
};

/// Something that must be the same on all ranks: what it is called in a
/// message, and its value.
struct AgreedValue {
  std::string field;
  std::string value;
};

/// All ranks of a job and the store they meet in. Cheap to copy.
class World {
 public:
  /// Reads the variables of torchrun, Slurm, Open MPI, MPICH (docs/clusters.md
  /// says which); without them, a world of one rank that opens no socket. On
  /// one host the store listens on loopback only.
  /// Collective: all ranks; blocks until all have come.
  /// Ranks of a launcher report their crashes from now on
  /// (mesh/crash/crash_handler.h), but for signals that have a handler; not
  /// with WEFT_CRASH_HANDLER=0. Throws: UsageError naming the variables that
  /// are missing, malformed or contradict each other, or if this process has a
  /// world of several ranks from here already; CommError if the others do not
  /// come in time, or rank 0 cannot listen.
  static World from_env(WorldOptions options = {});

  /// A world that meets in `store`, e.g. one thread a rank over a HashStore.
  static World from_store(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      int64_t world_size,
      WorldOptions options = {});

  /// One rank of an imagined world: collectives move nothing.
  static World fake(int64_t rank, int64_t world_size);

  int64_t rank() const;
  int64_t world_size() const;
  int64_t local_rank() const;
  int64_t local_world_size() const;
  const std::string& backend() const;
  /// Where this rank's model and data go: a CUDA device under "nccl", else the
  /// CPU.
  c10::Device device() const;
  std::chrono::milliseconds timeout() const;

  /// Makes a group of `ranks` (world ranks, this rank among them). Messages
  /// show `name`; `scope` and `name` together are never used twice in a world.
  /// Collective: the members only, all with the same arguments; blocks.
  /// Throws: c10::ValueError for wrong ranks or a name used before; CommError
  /// if the members do not all come in time.
  Communicator make_group(
      std::string name,
      const std::vector<int64_t>& ranks,
      std::string_view scope = {}) const;

  /// The group of all ranks, made once.
  Communicator group() const;

  /// Compares `value` (e.g. a hash or a short text) of all ranks through the
  /// store before anything else communicates.
  /// Collective: all ranks with the same `field`; blocks.
  /// Throws: DisagreementError naming the first differing rank, the field and
  /// both values.
  void check_agreement(std::string_view field, std::string_view value) const;
  /// The same for many values in one round; all ranks give the same fields in
  /// the same order, or the first that is not the same is named.
  void check_agreement(const std::vector<AgreedValue>& values) const;

  /// Communicator::check() of every group.
  void check() const;

  /// A number that is the same on all ranks and new at every call, for names
  /// of groups. Collective in order, not in time: it communicates nothing.
  int64_t next_id() const;

  /// Runs `body`, a part of a step, named `what` in messages ("the forward
  /// pass"). An exception that leaves it goes on to the caller; ranks that then
  /// wait in a collective for this one, for longer than a second, end with a
  /// CommError that names this rank, `what` and the exception. Nobody ends
  /// where the waiting rank left by an exception at the same call, or this rank
  /// goes on: enters another part, or calls a collective.
  template <class Body>
  decltype(auto) run_and_report_errors(std::string_view what, Body&& body)
      const {
    clear_step_error();
    try {
      return std::forward<Body>(body)();
    } catch (...) {
      record_step_error(what, std::current_exception());
      throw;
    }
  }

  /// Fails what is under way in every group of this world and all later calls
  /// with CommError, here and soon on the other ranks.
  void abort() const;

  struct State;

 private:
  explicit World(std::shared_ptr<State> state);
  void clear_step_error() const noexcept;
  void record_step_error(std::string_view what, const std::exception_ptr& cause)
      const noexcept;
  std::shared_ptr<State> state_;
};

} // namespace weft::mesh
