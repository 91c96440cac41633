#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "config/recipe.h"
#include "ddp/reducer/local_norms.h"
#include "mesh/communicator/communicator.h"

namespace weft::train {

/// Thrown if a loss, gradient or weight is not finite.
class NonFiniteError : public c10::Error {
  using c10::Error::Error;
};

/// The loss of one micro-batch on one rank.
struct MicroLoss {
  /// The number of the first sample, counted over all epochs.
  int64_t first_sample = 0;
  int64_t samples = 0;
  double loss = 0;
};

/// The most likely cause that a rank found for a step that is not finite. The
/// smallest finding by kind, and then by `order`, explains the others.
struct NonFiniteFinding {
  enum class Kind {
    /// A weight was not finite when the step began.
    kWeight,
    kLoss,
    /// A local gradient, before the reduction, is not finite or too large for a
    /// norm.
    kGradient,
    /// The local gradients of each rank are finite, but their norm over all
    /// ranks is not.
    kNorm,
    kNothing,
  };
  Kind kind = Kind::kNothing;
  /// The position of the parameter, counted from the loss, for kWeight and
  /// kGradient; the number of the sample for kLoss; the negated norm of this
  /// rank's largest gradient for kNorm.
  double order = 0;
  /// The finding as text: "the gradient of model.norm.weight is nan".
  std::string what = {};

  bool operator==(const NonFiniteFinding&) const = default;
};

/// Searches this rank's weights, losses and gradients before gradients are
/// scaled. The gradients of `module` are those before the reduction, from
/// ddp::local_norms(), which has those of the last backward, and from
/// `earlier_norms`: its results after other backwards of the step.
NonFiniteFinding find_non_finite(
    const torch::nn::Module& module,
    const std::vector<MicroLoss>& losses,
    const std::vector<ddp::LocalNorm>& earlier_norms = {});

/// Returns true if this rank's shards of all parameters are finite. Costs one
/// pass over them.
bool are_weights_finite(const torch::nn::Module& module);
/// Throws: NonFiniteError with the reason why step `step`, counted from 1, is
/// not saved.
[[noreturn]] void throw_non_finite_weights(
    int64_t step,
    const std::string& reason);

/// The cause of a step that is not finite: "the loss of samples 16 to 23 is nan
/// on ranks 2 and 3".
struct NonFiniteCause {
  std::string text;
  /// True if a weight was not finite when the step began.
  bool is_weight = false;
};

/// Returns the best explanation among the findings of all ranks, in rank order.
NonFiniteCause explain_non_finite(
    const std::vector<NonFiniteFinding>& findings);

/// Like explain_non_finite(findings), with one finding from each rank of
/// `world`.
/// Collective: all ranks; blocks.
NonFiniteCause explain_non_finite(
    mesh::Communicator& world,
    const NonFiniteFinding& own);

/// Decides whether a step that is not finite is skipped or ends the run. The
/// decision is the same on all ranks.
class NonFinitePolicy {
 public:
  explicit NonFinitePolicy(const config::TrainConfig& config)
      : config_(config) {}

  /// Records a finite step.
  void on_finite() {
    streak_ = 0;
    has_updated_ = true;
  }
  /// Records that step `step`, counted from 1, is not finite. Returns a message
  /// for the user if the step is skipped.
  /// Throws: NonFiniteError if it is not skipped, always so if a weight is the
  /// cause: no later step would be finite.
  std::string on_non_finite(int64_t step, const NonFiniteCause& cause);

  /// The number of steps skipped in a row up to now. It is part of the run's
  /// state.
  int64_t streak() const { return streak_; }
  void set_streak(int64_t streak) { streak_ = streak; }

 private:
  config::TrainConfig config_;
  int64_t streak_ = 0;
  /// True after the first finite step of this process.
  bool has_updated_ = false;
};

} // namespace weft::train
