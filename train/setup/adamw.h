#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

namespace weft::train {

/// torch::optim::AdamW with one fused kernel call per step for all parameters
/// instead of about twelve ops for each. It has libtorch's options and state,
/// so that state_dict code works for both. The state of a DTensor has the
/// parameter's placements. An element's bits do not depend on how its parameter
/// is sharded; see Note [Whole vectors].
/// Source: torch/optim/adamw.py with fused=True; Loshchilov and Hutter (2019).
class FusedAdamW : public torch::optim::Optimizer {
 public:
  FusedAdamW(
      std::vector<at::Tensor> parameters,
      torch::optim::AdamWOptions options);

  /// Performs one step.
  /// Throws: c10::NotImplementedError if amsgrad is set.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Sets the learning rate of all parameter groups.
  void set_lr(double lr);

 private:
  void step_group(torch::optim::OptimizerParamGroup& group);
};

} // namespace weft::train
