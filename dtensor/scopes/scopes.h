#pragma once

#include <string_view>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace weft::dtensor {

/// Scope in which plain tensors that meet DTensors in an op of this thread (and
/// of backward passes started in it) count as replicated. Every rank must hold
/// the same values; this is not checked.
/// Source: torch/distributed/tensor/experimental, implicit_replication.
class ImplicitReplication {
 public:
  ImplicitReplication();

 private:
  c10::DebugInfoGuard guard_;
};

/// The handling of implicit redistributions.
struct ExplicitRedistributionOptions {
  /// What happens at an implicit redistribution.
  enum class Mode { kRaise, kWarn };
  /// False disables the enclosing scope.
  bool enable = true;
  /// Raises an error, or warns once per op and scope.
  Mode mode = Mode::kRaise;
  /// Also refuses redistributions without communication (taking a part of a
  /// replicated tensor).
  bool strict = false;
};

/// Scope in which an op of this thread (and of backward passes started in it)
/// is refused if it would redistribute its inputs. Redistributions by
/// redistribute(), full_tensor(), local_map() or a tensor-parallel style are
/// explicit, and so are their transposes in backward. Scopes nest; the
/// innermost applies.
/// Source: torch/distributed/tensor/_utils.py, ExplicitRedistributionContext.
class ExplicitRedistribution {
 public:
  /// See ExplicitRedistributionOptions::Mode.
  using Mode = ExplicitRedistributionOptions::Mode;
  /// Sets the mode until the destructor restores it.
  explicit ExplicitRedistribution(
      const ExplicitRedistributionOptions& options = {});

 private:
  c10::DebugInfoGuard guard_;
};

/// Returns true if plain tensors count as replicated.
bool implicit_replication_enabled();

namespace detail {
/// Returns the options of this thread's innermost ExplicitRedistribution, or
/// null.
const ExplicitRedistributionOptions* explicit_redistribution();
/// Returns true if the innermost scope, which must exist, has not yet warned
/// about `op`.
bool is_first_warning(std::string_view op);
/// Returns true if an ExplicitRedistribution or a RedistributeObserverGuard
/// must see an op's redistributions before they run.
bool moves_are_watched();

/// Scope of a CommDebugMode that explains redistributions.
class RedistributeObserverGuard {
 public:
  RedistributeObserverGuard();

 private:
  c10::DebugInfoGuard guard_;
};
} // namespace detail

} // namespace weft::dtensor
