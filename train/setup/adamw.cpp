#include "train/setup/adamw.h"

#include <algorithm>
#include <optional>

#include <torch/torch.h>

#include "dtensor/ops/whole_vectors.h"
#include "dtensor/tensor/dtensor.h"

namespace weft::train {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

// Numbers of steps as tensors. The kernel only reads them, on the device of the
// parameter. So one tensor serves all parameters with the same number of steps.
class StepNumbers {
 public:
  const at::Tensor& get(int64_t step, c10::Device device) {
    for (const auto& known : known_) {
      if (known.step == step && known.tensor.device() == device) {
        return known.tensor;
      }
    }
    const auto options = at::TensorOptions(at::kFloat).device(device);
    known_.push_back({step, at::full({}, static_cast<double>(step), options)});
    return known_.back().tensor;
  }

 private:
  struct Known {
    int64_t step;
    at::Tensor tensor;
  };
  std::vector<Known> known_;
};

} // namespace

FusedAdamW::FusedAdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : Optimizer(
          {torch::optim::OptimizerParamGroup(std::move(parameters))},
          std::make_unique<AdamWOptions>(options)) {}

at::Tensor FusedAdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    step_group(group);
  }
  return loss;
}

void FusedAdamW::step_group(torch::optim::OptimizerParamGroup& group) {
  const auto& options = static_cast<AdamWOptions&>(group.options());
  TORCH_CHECK_NOT_IMPLEMENTED(
      !options.amsgrad(), "[FusedAdamW] amsgrad is not supported.");
  std::vector<at::Tensor> parameters, grads, averages, squares, steps;
  StepNumbers numbers;
  for (auto& parameter : group.params()) {
    if (!parameter.grad().defined()) {
      continue;
    }
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (!slot) {
      auto fresh = std::make_unique<AdamWParamState>();
      fresh->step(0);
      fresh->exp_avg(at::zeros_like(parameter));
      fresh->exp_avg_sq(at::zeros_like(parameter));
      slot = std::move(fresh);
    }
    auto& state = static_cast<AdamWParamState&>(*slot);
    state.step(state.step() + 1);
    parameters.push_back(parameter);
    grads.push_back(parameter.grad());
    averages.push_back(state.exp_avg());
    squares.push_back(state.exp_avg_sq());
    steps.push_back(numbers.get(state.step(), parameter.device()));
  }
  if (parameters.empty()) {
    return;
  }
  // For DTensors, the rule of the op does this with the local tensors.
  std::optional<dtensor::WholeVectors> vectors;
  if (std::ranges::none_of(parameters, dtensor::is_dtensor)) {
    vectors.emplace(
        std::vector{&parameters, &grads, &averages, &squares},
        std::vector{&steps});
  }
  at::_fused_adamw_(
      parameters,
      grads,
      averages,
      squares,
      /*max_exp_avg_sqs=*/{},
      steps,
      options.lr(),
      std::get<0>(options.betas()),
      std::get<1>(options.betas()),
      options.weight_decay(),
      options.eps(),
      /*amsgrad=*/false,
      /*maximize=*/false);
  if (vectors) {
    vectors->copy_back();
  }
}

void FusedAdamW::save(torch::serialize::OutputArchive&) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[FusedAdamW] torch::save is not supported.");
}

void FusedAdamW::load(torch::serialize::InputArchive&) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "[FusedAdamW] torch::load is not supported.");
}

void FusedAdamW::set_lr(double lr) {
  for (auto& group : param_groups_) {
    group.options().set_lr(lr);
  }
}

} // namespace weft::train
