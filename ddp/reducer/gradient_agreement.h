#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "ddp/reducer/gradient_kind.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// The replicas that must agree. The collectives and messages of this header
/// use it.
struct Replicas {
  const mesh::DeviceMesh& dp;
  /// The names of the parameters by index.
  const std::vector<std::string>& names;
  /// The modules of the parameters, e.g. "layers.0.wq (Linear)".
  const std::vector<std::string>& modules;
  /// The device of the tensors to communicate.
  c10::Device device;
};

/// A problem with the gradient of a parameter on one rank.
enum class GradientProblem : int64_t {
  kNone,
  kMissing,
  kTwice,
  /// With static_graph: differs from the first backward.
  kGraphChanged,
  kNotFinite,
  kNoForward,
  kWrongHookResult,
  /// Does not match its bucket. See Reducer::check_gradient().
  kUnusable,
  /// Reported for the first parameter in place of the module.
  kModuleChanged,
};

/// One backward on one rank, by parameter.
struct BackwardReport {
  /// The parameters in the order in which their gradients became ready.
  std::vector<size_t> ready;
  /// The reduction of each gradient; kUnknownKind if there is none.
  std::vector<int64_t> kinds;
  std::vector<GradientProblem> problems;
};

/// The result that all ranks use.
struct AgreedOrder {
  /// Every parameter once: in the order of the first rank that had gradients,
  /// followed by those without a gradient there.
  std::vector<size_t> order;
  /// kUnknownKind if no rank had a gradient.
  std::vector<int64_t> kinds;
};

/// Returns the order of the first rank that had gradients.
/// Collective: all ranks of `dp`; blocks.
/// Throws: on all ranks, c10::ValueError if a rank reports a problem;
/// mesh::DisagreementError if ranks differ in kinds.
AgreedOrder agree_on_order(
    const Replicas& replicas,
    const BackwardReport& report);

/// Throws an error with the problems of all ranks.
/// Collective: all ranks of `dp`; blocks.
[[noreturn]] void throw_problems(
    const Replicas& replicas,
    const std::vector<GradientProblem>& problems);

} // namespace weft::ddp
