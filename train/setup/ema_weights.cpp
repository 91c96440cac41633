#include "train/setup/ema_weights.h"

#include <algorithm>

#include <torch/torch.h>

#include "dtensor/tensor/dtensor_impl.h"

namespace weft::train {
namespace {

at::Tensor own_part(const at::Tensor& tensor) {
  const auto* impl = dtensor::dtensor_impl(tensor);
  return impl ? impl->local() : tensor;
}

} // namespace

EmaWeights::EmaWeights(const torch::nn::Module& module, double decay)
    : decay_(decay) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) {
      parameters_.emplace_back(item.key(), item.value());
    }
  }
}

void EmaWeights::begin() {
  if (has_begun()) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_) {
    const auto known = std::ranges::find_if(entries_, [&](const Entry& entry) {
      return entry.parameter.is_same(parameter);
    });
    if (known != entries_.end()) {
      known->names.push_back(name);
      continue;
    }
    entries_.push_back(
        {.names = {name},
         .parameter = parameter,
         .average = parameter.detach().to(at::kFloat).clone()});
  }
}

void EmaWeights::update() {
  begin();
  const at::NoGradGuard no_grad;
  for (auto& [names, parameter, average] : entries_) {
    // Updates the local tensors. The update is elementwise and needs no DTensor
    // op.
    own_part(average).lerp_(own_part(parameter).to(at::kFloat), 1 - decay_);
  }
}

dtensor::StateDict EmaWeights::state_dict(const mesh::DeviceMesh& mesh) {
  begin();
  dtensor::StateDict dict;
  for (const auto& entry : entries_) {
    for (const auto& name : entry.names) {
      dict.emplace(name, dtensor::on_mesh(entry.average, mesh));
    }
  }
  return dict;
}

void EmaWeights::swap() {
  begin();
  const at::NoGradGuard no_grad;
  for (auto& [names, parameter, average] : entries_) {
    const auto weights = parameter.detach().clone();
    parameter.copy_(average);
    average.copy_(weights);
  }
}

} // namespace weft::train
