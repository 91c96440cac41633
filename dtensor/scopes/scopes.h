#pragma once

#include <string_view>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace weft::dtensor {

/// While one lives, plain tensors that meet DTensors in an op of this thread
/// (and of the backward passes started in it) count as replicated: every rank
/// must hold the same values, which nobody checks.
/// Source: torch/distributed/tensor/experimental, implicit_replication.
class ImplicitReplication {
 public:
  ImplicitReplication();

 private:
  c10::DebugInfoGuard guard_;
};

/// What to do about implicit redistributions.
struct ExplicitRedistributionOptions {
  enum class Mode { kRaise, kWarn };
  /// False: ends, inside an outer scope, what that one asks for.
  bool enable = true;
  /// An error, or a warning once an op and scope.
  Mode mode = Mode::kRaise;
  /// Also what moves nothing between ranks (taking a part of a whole).
  bool strict = false;
};

/// While one lives, an op of this thread (and of the backward passes started
/// in it) that would have to move its inputs is refused: the program says
/// itself what moves. What redistribute(), full_tensor(), local_map() or a
/// tensor-parallel style ask for is explicit, and so are their transposes in
/// backward. Scopes nest; the innermost counts.
/// Source: torch/distributed/tensor/_utils.py, ExplicitRedistributionContext.
class ExplicitRedistribution {
 public:
  using Mode = ExplicitRedistributionOptions::Mode;
  explicit ExplicitRedistribution(
      const ExplicitRedistributionOptions& options = {});

 private:
  c10::DebugInfoGuard guard_;
};

/// Whether plain tensors count as replicated here.
bool implicit_replication_enabled();

namespace detail {
/// What the innermost ExplicitRedistribution of this thread asks for; null if
/// nothing does.
const ExplicitRedistributionOptions* explicit_redistribution();
/// Whether the innermost scope, which there is, has not warned of `op` yet.
bool is_first_warning(std::string_view op);
/// Whether somebody wants to know of an op's moves before it makes them: an
/// ExplicitRedistribution, or a RedistributeObserverGuard.
bool moves_are_watched();

/// For a CommDebugMode that explains moves.
class RedistributeObserverGuard {
 public:
  RedistributeObserverGuard();

 private:
  c10::DebugInfoGuard guard_;
};
} // namespace detail

} // namespace weft::dtensor
