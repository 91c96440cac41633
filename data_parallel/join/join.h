#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <c10/util/Exception.h>

#include "data_parallel/join/joinable.h"
#include "mesh/communicator/communicator.h"

namespace weft::data_parallel {

/// Thrown on all ranks if a rank ran out of inputs and
/// throw_on_early_termination is set. The message has the ranks and their
/// steps.
class EarlyTerminationError : public c10::Error {
  using c10::Error::Error;
};

/// Thrown on the other ranks if a rank of a Join failed outside of collectives.
class JoinError : public c10::Error {
  using c10::Error::Error;
};

/// The options of a Join.
struct JoinOptions {
  /// False means that inputs are known to be even; Join then does nothing.
  bool enable = true;
  /// Throws on all ranks, instead of shadowing, as soon as one rank has no more
  /// inputs.
  bool throw_on_early_termination = false;
};

/// Trains with uneven inputs: ranks that have run out of inputs take part in
/// the collectives of the other ranks until all have run out.
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
/// All joinables must have the same process group and device. See Note [Join].
/// Source: torch/distributed/algorithms/join.py.
class Join {
 public:
  /// Throws: c10::ValueError if the list is empty, if a joinable is null or
  /// repeated, or if the joinables have different groups, model-parallel meshes
  /// or devices.
  explicit Join(
      std::vector<Joinable*> joinables,
      JoinOptions options = {},
      JoinKwargs kwargs = {});
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;
  ~Join();

  /// Runs `body`, this rank's loop over its inputs, and then shadows the other
  /// ranks. Called once.
  /// Collective: all ranks of the joinables' group and model-parallel mesh;
  /// returns when the last rank has finished.
  /// Throws: c10::ValueError if it ran before or a joinable is in another
  /// running Join; the exception of `body` or a hook, and then on the other
  /// ranks JoinError, or mesh::CommError if they were in a collective;
  /// EarlyTerminationError on all ranks.
  void run(const std::function<void()>& body);

  /// Returns how many ranks of the group have inputs in the current iteration,
  /// by the last notification. Blocks until all ranks have notified.
  /// Collective: all ranks with inputs, if a rank has failed.
  /// Throws: JoinError if a rank has failed.
  int64_t active_ranks();

  /// Notifies the ranks without inputs that an iteration of collectives begins.
  /// Does nothing and returns nothing unless `joinable` is the first one of a
  /// running Join.
  /// Collective: all ranks with inputs, and those without in run().
  /// Throws: EarlyTerminationError; JoinError if another rank has failed.
  static std::optional<mesh::Work> notify_join_context(Joinable& joinable);
  /// Like notify_join_context(), but waits only for the ranks of the
  /// model-parallel mesh, unless throw_on_early_termination is set. The
  /// joinable must call active_ranks() before its own collectives.
  /// Collective: like notify_join_context().
  /// Throws: like notify_join_context().
  static std::optional<mesh::Work> notify_join_context_async(
      Joinable& joinable);
  /// Leaves the body if a rank of the model-parallel group has no inputs left.
  /// Collective: the model-parallel group, before each use of inputs that its
  /// ranks share.
  /// Throws: JoinError if one of its ranks has failed. If one of its ranks has
  /// no inputs, throws a type that is not derived from std::exception, so that
  /// the body ends.
  void check_model_parallel_mesh();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns a boolean argument of a Join, or `otherwise` if it is not given.
/// Throws: c10::ValueError naming `key` if it is of another type.
bool read_bool(const JoinKwargs& kwargs, const char* key, bool otherwise);

} // namespace weft::data_parallel
