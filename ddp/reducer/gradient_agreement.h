#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "ddp/reducer/gradient_kind.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// The replicas that must agree, and over what. Messages and collectives of
/// this header use it.
struct Replicas {
  const mesh::DeviceMesh& dp;
  /// Names of the parameters, by index.
  const std::vector<std::string>& names;
  /// The modules that have them, e.g. "layers.0.wq (Linear)".
  const std::vector<std::string>& modules;
  /// Where tensors to communicate lie.
  c10::Device device;
};

/// What went wrong with the gradient of a parameter, on one rank.
enum class GradientProblem : int64_t {
  kNone,
  kMissing,
  kTwice,
  /// static_graph: not what the first backward had.
  kGraphChanged,
  kNotFinite,
  kNoForward,
  kWrongHookResult,
  /// It does not fit into its bucket: see Reducer::check_gradient().
  kUnusable,
  /// Of the first parameter, which stands for the module.
  kModuleChanged,
};

/// Of one backward, by parameter.
struct BackwardReport {
  /// Parameters in the order in which their gradients became ready.
  std::vector<size_t> ready;
  /// How each gradient is reduced; kUnknownKind where there is none.
  std::vector<int64_t> kinds;
  std::vector<GradientProblem> problems;
};

/// What all ranks go by.
struct AgreedOrder {
  /// Every parameter once: the order of the first rank that had gradients, then
  /// those that it had none of.
  std::vector<size_t> order;
  /// kUnknownKind where no rank had a gradient.
  std::vector<int64_t> kinds;
};

/// Adopts the order of the first rank that had gradients.
/// Collective: all ranks of `dp`; blocks.
/// Throws, on all ranks: c10::ValueError if a rank reports a problem;
/// mesh::DisagreementError if ranks differ in kinds.
AgreedOrder agree_on_order(
    const Replicas& replicas,
    const BackwardReport& report);

/// Fails with the problems of all ranks.
/// Collective: all ranks of `dp`; blocks.
[[noreturn]] void throw_problems(
    const Replicas& replicas,
    const std::vector<GradientProblem>& problems);

} // namespace weft::ddp
