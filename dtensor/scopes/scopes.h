#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "dtensor/spec/spec.h"

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
bool explicit_redistribution_enabled();
/// Whether somebody wants to know of an op's moves before it makes them: an
/// ExplicitRedistribution, or a WatchMoves.
bool moves_are_watched();

/// For a CommDebugMode that explains moves.
class WatchMoves {
 public:
  WatchMoves();

 private:
  c10::DebugInfoGuard guard_;
};

void refuse_implicit_redistribution(
    std::string_view op,
    const at::Tensor& tensor,
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::function_ref<std::string()> operands);
} // namespace detail

/// To be called by whatever brings `tensor` from one spec to another because
/// an op needs it so. `operands` describes all the op's tensors; asked only on
/// failure. Costs a look at a thread-local pointer where no scope is open.
/// Throws: c10::ValueError inside an ExplicitRedistribution, on every rank.
inline void check_implicit_redistribution(
    std::string_view op,
    const at::Tensor& tensor,
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::function_ref<std::string()> operands) {
  if (detail::explicit_redistribution_enabled()) [[unlikely]] {
    detail::refuse_implicit_redistribution(op, tensor, from, to, operands);
  }
}

/// Bytes that the busiest rank receives when a tensor of these sizes goes from
/// one spec to another by the plan of find_plan(), which is the one that runs;
/// for messages. Throws: as fitted().
double redistributed_bytes(
    const DTensorSpec& from,
    const DTensorSpec& to,
    c10::IntArrayRef global_sizes,
    int64_t element_size);

} // namespace weft::dtensor
