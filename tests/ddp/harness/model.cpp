#include "tests/ddp/harness/model.h"

#include "dtensor/tensor/dtensor.h"
#include "tests/ddp/models.h"

namespace weft::test {

HarnessModel::Inputs
HarnessModel::get_input(int64_t rank, int64_t step, int64_t rows) const {
  auto inputs = make_input(rank, step, rows);
  if (tp) {
    for (auto& input : inputs) {
      input = dtensor::distribute_tensor(
          input, *tp, {dtensor::Replicate()}, std::nullopt);
    }
  }
  return inputs;
}

at::Tensor HarnessModel::get_loss(
    const Inputs& inputs,
    const at::Tensor& output) {
  const auto loss = make_loss(inputs, output);
  return dtensor::is_dtensor(loss) ? dtensor::full_tensor(loss) : loss;
}

NamedHarnessTensors harness_parameters(const torch::nn::Module& model) {
  NamedHarnessTensors result;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.emplace_back(item.key(), item.value());
    }
  }
  return result;
}

std::vector<at::Tensor> harness_tensors(const torch::nn::Module& model) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : harness_parameters(model)) {
    tensors.push_back(tensor);
  }
  return tensors;
}

void fill_harness(HarnessModel& model) {
  const at::NoGradGuard no_grad;
  int64_t place = 0;
  for (auto& [name, parameter] : harness_parameters(model)) {
    const auto values =
        wave(parameter.sizes(), model.phase_of(name, place)) * 0.3;
    const bool is_scale = parameter.dim() == 1 && name.ends_with("weight");
    parameter.copy_(is_scale ? values + 1 : values);
    ++place;
  }
}

at::Tensor harness_wave(at::IntArrayRef sizes, int64_t rank, int64_t step) {
  return wave(
      sizes,
      0.1 + 1.31 * static_cast<double>(rank) +
          0.37 * static_cast<double>(step));
}

} // namespace weft::test
