#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "config/recipe.h"
#include "mesh/communicator/communicator.h"

namespace weft::recipes {

/// A loss or gradient is not a finite number.
class NonFiniteError : public c10::Error {
  using c10::Error::Error;
};

/// Of one micro-batch on one rank.
struct MicroLoss {
  /// Counted over all epochs.
  int64_t first_sample = 0;
  int64_t samples = 0;
  double loss = 0;
};

/// The worst that a rank found in a step that is not finite. By kind, and
/// within one by `order`, the least explains the others.
struct NonFiniteFinding {
  enum class Kind {
    /// A weight that was not finite when the step began.
    kWeight,
    kLoss,
    /// A gradient that this rank brought: not finite, or too large for a norm.
    kGradient,
    /// Gradients were in order on each rank, but their norm is not.
    kNorm,
    kNothing,
  };
  Kind kind = Kind::kNothing;
  /// The position of the parameter from the loss, the number of the sample, or
  /// how small the gradients are.
  double order = 0;
  /// "the gradient of model.norm.weight is nan".
  std::string what = {};

  bool operator==(const NonFiniteFinding&) const = default;
};

/// Looks at what this rank has, before gradients are scaled: its losses, and
/// the gradients of `module` by what ddp::local_norms() kept.
NonFiniteFinding find_non_finite(
    const torch::nn::Module& module,
    const std::vector<MicroLoss>& losses);

/// Whether what this rank holds of the parameters is finite: a pass over them.
bool are_weights_finite(const torch::nn::Module& module);
/// Throws: NonFiniteError that says why step `step`, from 1, is not saved.
[[noreturn]] void throw_non_finite_weights(
    int64_t step,
    const std::string& reason);

/// What explains best what `findings`, of all ranks in order, say: "the loss of
/// samples 16 to 23 is nan on ranks 2 and 3".
std::string explain_non_finite(const std::vector<NonFiniteFinding>& findings);

/// The same over the ranks of `world`, which have a finding each.
/// Collective: all ranks; blocks.
std::string explain_non_finite(
    mesh::Communicator& world,
    const NonFiniteFinding& own);

/// What to do with such steps, the same on all ranks.
class NonFinitePolicy {
 public:
  explicit NonFinitePolicy(const TrainConfig& config) : config_(config) {}

  /// A step was finite.
  void on_finite() { streak_ = 0; }
  /// `step`, from 1, is not, for the reason of explain_non_finite(). Returns
  /// what the user is to be told, if it is skipped.
  /// Throws: NonFiniteError otherwise.
  std::string on_non_finite(int64_t step, const std::string& reason);

  /// Steps skipped in a row up to now; part of a run's state.
  int64_t streak() const { return streak_; }
  void set_streak(int64_t streak) { streak_ = streak; }

 private:
  TrainConfig config_;
  int64_t streak_ = 0;
};

} // namespace weft::recipes
