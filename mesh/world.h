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

/// The options of a World.
struct WorldOptions {
  /// "cpu" (shared memory for groups on one host, otherwise gloo), "gloo" (CPU,
  /// always over sockets), "nccl" (CUDA; opens this rank's device) or "fake"
  /// (no communication: one process acts as one rank of a world of any size).
  std::string backend = "cpu";
  /// The timeout of a collective and of a rendezvous.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// The address on which gloo listens. Empty means loopback if MASTER_ADDR is
  /// a loopback address, otherwise this host's address on the route to
  /// MASTER_ADDR.
  std::string bind_address;
  /// The options of the watchdog.
  WatchdogOptions watch;
};

/// A value that must be identical on all ranks, and its name in messages.
struct AgreedValue {
  /// The name in messages.
  std::string field;
  /// The value as text.
  std::string value;
};

/// The ranks of a job and the store through which they meet. Cheap to copy.
class World {
 public:
  /// Reads the environment variables of torchrun, Slurm, Open MPI or MPICH
  /// (docs/clusters.md). Without them the world has one rank and opens no
  /// socket. On one host the store listens on loopback only. In a process
  /// started by a launcher it also installs the crash handler
  /// (mesh/crash/crash_handler.h) for signals without a handler, unless
  /// WEFT_CRASH_HANDLER is 0.
  /// Collective: all ranks; blocks until all have arrived.
  /// Throws: UsageError if variables are missing, malformed or contradictory,
  /// or if this process already has a world of several ranks from its
  /// environment; CommError if a rank does not arrive in time or rank 0 cannot
  /// listen.
  static World from_env(WorldOptions options = {});

  /// Creates a world that meets in `store`, for example one thread per rank
  /// over a HashStore.
  static World from_store(
      const c10::intrusive_ptr<c10d::Store>& store,
      int64_t rank,
      int64_t world_size,
      WorldOptions options = {});

  /// Creates another world in this process, of other ranks that meet in
  /// `store`, which can be aborted and dropped by itself while this one goes
  /// on. Its groups use the progress thread, the listening socket and the
  /// device of this world, and end with the last copy of it and of them. Its
  /// connection to the store is its own. The keys that it leaves in the store
  /// are the caller's to delete; a new world needs unused ones. It has no
  /// watchdog: groups in shared memory notice a lost rank within 100 ms, but
  /// over sockets a rank may wait for the timeout unless it calls abort().
  /// Throws: c10::ValueError if `store` is null or `rank` is not in
  /// [0, world_size).
  World scoped(
      const c10::intrusive_ptr<c10d::Store>& store,
      int64_t rank,
      int64_t world_size,
      std::chrono::milliseconds timeout) const;

  /// Creates one rank of a fake process group: collectives move no data.
  static World fake(int64_t rank, int64_t world_size);

  /// This rank, in [0, world_size()).
  int64_t rank() const;
  /// The number of ranks.
  int64_t world_size() const;
  /// This rank's position on its host, in [0, local_world_size()).
  int64_t local_rank() const;
  /// The number of ranks on this host.
  int64_t local_world_size() const;
  /// The backend: "cpu", "gloo", "nccl" or "fake".
  const std::string& backend() const;
  /// The device of this rank's model and data: a CUDA device with "nccl",
  /// otherwise the CPU.
  c10::Device device() const;
  /// The time after which a collective that does not end is an error.
  std::chrono::milliseconds timeout() const;

  /// Creates a group of `ranks` (world ranks, including this rank). Messages
  /// show `name`. A pair of `scope` and `name` can be used once per world.
  /// Collective: the members only, all with identical arguments; blocks.
  /// Throws: c10::ValueError for wrong ranks or a used name; CommError if a
  /// member does not arrive in time.
  Communicator make_group(
      std::string name,
      const std::vector<int64_t>& ranks,
      std::string_view scope = {}) const;

  /// Returns the group of all ranks, which is created once.
  Communicator group() const;

  /// Compares `value` (e.g. a hash or a short string) of all ranks through the
  /// store.
  /// Collective: all ranks with the same `field`; blocks.
  /// Throws: DisagreementError naming the first rank that differs, the field
  /// and both values.
  void check_agreement(std::string_view field, std::string_view value) const;
  /// Like check_agreement(field, value), for many values in one round. All
  /// ranks pass the same fields in the same order; otherwise the first field
  /// that differs is named.
  void check_agreement(const std::vector<AgreedValue>& values) const;

  /// Calls Communicator::check() on every group.
  void check() const;

  /// Returns a number that is identical on all ranks and new at every call, for
  /// the names of groups. Does not communicate, but all ranks must call it in
  /// the same order.
  int64_t next_id() const;

  /// Runs `body`, a part of a step that messages call `what` ("the forward
  /// pass"). If an exception leaves it, the caller gets the exception, and
  /// ranks that wait in a collective for this rank for more than 1 s fail with
  /// a CommError that names this rank, `what` and the exception. They do not
  /// fail if they left by an exception at the same call, or if this rank
  /// continues: enters another part or calls a collective.
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

  /// Fails the running operations of every group of this world and all later
  /// calls with CommError, on this rank at once and soon on the others. Groups
  /// that connect fail, too. Once Work::wait() has thrown, the collective no
  /// longer writes to its tensors.
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
