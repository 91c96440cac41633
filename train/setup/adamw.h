#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

namespace weft::recipes {

/// torch::optim::AdamW with one fused kernel call a step for all parameters
/// instead of a dozen ops for each. Options and state are libtorch's own, so
/// state_dict code for one serves the other. The state of a DTensor lies where
/// the parameter does. An element's bits do not depend on how its parameter is
/// cut; see Note [Whole vectors].
/// Source: torch/optim/adamw.py with fused=True; Loshchilov and Hutter (2019).
class FusedAdamW : public torch::optim::Optimizer {
 public:
  FusedAdamW(
      std::vector<at::Tensor> parameters,
      torch::optim::AdamWOptions options);

  /// Throws: c10::NotImplementedError for amsgrad.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Of all parameter groups.
  void set_lr(double lr);

 private:
  void step_group(torch::optim::OptimizerParamGroup& group);
};

} // namespace weft::recipes
