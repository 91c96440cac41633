#include "ddp/model_averaging/post_local_sgd_optimizer.h"

#include <utility>

#include <torch/torch.h>

#include "data_parallel/parameters/module_state.h"
#include "ddp/model_averaging/average_parameters.h"
#include "dtensor/nn/optimizer_state.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

constexpr const char* kOptimizerOp = "PostLocalSGDOptimizer";
constexpr const char* kStep = "step";

mesh::ErrorContext where() {
  return {"model averaging"};
}

} // namespace

PostLocalSGDOptimizer::PostLocalSGDOptimizer(
    std::shared_ptr<torch::optim::Optimizer> optim,
    std::shared_ptr<ModelAverager> averager)
    : optim_(std::move(optim)), averager_(std::move(averager)) {
  WEFT_CHECK(
      optim_ != nullptr,
      kOptimizerOp,
      where(),
      "optim is null. Pass an optimizer.");
  WEFT_CHECK(
      averager_ != nullptr,
      kOptimizerOp,
      where(),
      "averager is null. Pass e.g. a PeriodicModelAverager.");
}

at::Tensor PostLocalSGDOptimizer::step(
    torch::optim::Optimizer::LossClosure closure) {
  auto loss = optim_->step(std::move(closure));
  averager_->average_parameters(parameters_of(param_groups()));
  return loss;
}

void PostLocalSGDOptimizer::zero_grad(bool set_to_none) {
  optim_->zero_grad(set_to_none);
}

void PostLocalSGDOptimizer::add_param_group(
    const torch::optim::OptimizerParamGroup& group) {
  optim_->add_param_group(group);
}

std::vector<torch::optim::OptimizerParamGroup>&
PostLocalSGDOptimizer::param_groups() {
  return optim_->param_groups();
}

dtensor::StateDict PostLocalSGDOptimizer::state_dict(
    const torch::nn::Module& module,
    const mesh::DeviceMesh& mesh) {
  auto state = dtensor::optimizer_state_dict(*optim_, module, mesh);
  state[kStep] =
      dtensor::on_mesh(at::scalar_tensor(averager_->step(), at::kLong), mesh);
  return state;
}

void PostLocalSGDOptimizer::load_state_dict(
    const torch::nn::Module& module,
    const dtensor::StateDict& state) {
  int64_t step = 0;
  const auto found = state.find(kStep);
  if (found == state.end()) {
    TORCH_WARN(
        kOptimizerOp,
        ": the state has no \"step\" of the averager, which begins at 0.");
  } else {
    const auto number = data_parallel::local_part(found->second);
    WEFT_CHECK(
        number.numel() == 1 && number.scalar_type() == at::kLong,
        kOptimizerOp,
        where(),
        "\"step\" must be one int64 value, but has dtype ",
        number.scalar_type(),
        " and ",
        number.numel(),
        " elements.");
    step = number.item<int64_t>();
  }
  dtensor::load_optimizer_state_dict(*optim_, module, state);
  averager_->set_step(step);
}

} // namespace weft::ddp
