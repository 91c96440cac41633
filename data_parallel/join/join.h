#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <c10/util/Exception.h>

#include "data_parallel/join/joinable.h"
#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// Some rank ran out of inputs, and throw_on_early_termination asks to stop;
/// thrown on all ranks, with the ranks and their steps.
class EarlyTerminationError : public c10::Error {
  using c10::Error::Error;
};

/// A rank of a Join failed outside of collectives; thrown on the others.
class JoinError : public c10::Error {
  using c10::Error::Error;
};

struct JoinOptions {
  /// False: inputs are known to be even, and nothing is done.
  bool enable = true;
  bool throw_on_early_termination = false;
};

/// Trains with uneven inputs: ranks that have run out take part in the
/// collectives of the others until all have.
///
///   Join join({&ddp, &optimizer});
///   join.run([&] {
///     for (const auto& batch : loader) {
///       optimizer.zero_grad();
///       loss(ddp(batch.data), batch.target).backward();
///       optimizer.step();
///     }
///   });
///
/// All joinables have the same process group and device. See Note [Join].
/// Source: torch/distributed/algorithms/join.py.
class Join {
 public:
  /// Throws: c10::ValueError for no joinables, a null or repeated one, or ones
  /// with different groups, rows or devices.
  explicit Join(
      std::vector<Joinable*> joinables,
      JoinOptions options = {},
      JoinKwargs kwargs = {});
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;
  ~Join();

  /// Runs `body`, this rank's loop over its inputs, and then shadows the other
  /// ranks. Once. Collective: all ranks of the joinables' group and row; ends
  /// when the last of them ends.
  /// Throws: c10::ValueError if it ran before or a joinable is in another Join
  /// now; what `body` or a hook throws, and then on the other ranks JoinError,
  /// or mesh::CommError where collectives were under way; on all ranks
  /// EarlyTerminationError.
  void run(const std::function<void()>& body);

  /// How many ranks of the group have inputs in the iteration under way, as
  /// notified last; blocks until all ranks have said so.
  /// Collective: all ranks with inputs, if one has failed.
  /// Throws: JoinError if one of them has failed.
  int64_t active_ranks();

  /// Tells the ranks without inputs that an iteration of collectives begins
  /// here. Does nothing, and has no result, unless `joinable` is the first one
  /// of a Join that runs.
  /// Collective: all ranks with inputs, and those without in run().
  /// Throws: EarlyTerminationError; JoinError if another rank has failed.
  static std::optional<mesh::Work> notify_join_context(Joinable& joinable);
  /// The same without waiting for the others, but for those of the row, unless
  /// throw_on_early_termination must. Before its own collectives the joinable
  /// calls active_ranks(). Collective and throws: as notify_join_context().
  static std::optional<mesh::Work> notify_join_context_async(
      Joinable& joinable);
  /// Ends the body of this rank if one of its row has run out of inputs.
  /// Collective: the row, before each use of inputs that are the same there.
  /// Throws: JoinError if one of the row has failed; what ends the body, which
  /// is no std::exception, if one has no inputs.
  void check_model_parallel_mesh();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace weft::ddp
