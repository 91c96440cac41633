// Recurrent layers. Sequences are independent, so the batch may be sharded.
// Sharded weights are gathered. See Note [Regions].

#include <torch/library.h>
#include <torch/torch.h>

#include "dtensor/kernels/region.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/dtensor_impl.h"

namespace weft::dtensor::kernels {
namespace {

using Stack = torch::jit::Stack;

// The arguments of lstm(input, hx, params, has_biases, num_layers, dropout,
// train, bidirectional, batch_first). gru and rnn have one hx instead of a
// list.
enum Argument : size_t {
  kInput,
  kStates,
  kParameters,
  kHasBiases,
  kLayers,
  kDropout,
  kTrain,
  kBidirectional,
  kBatchFirst,
  kCount
};

RegionDims dims_of(const Stack& stack, size_t first) {
  const bool batched = stack[first + kInput].toTensor().dim() == 3;
  const bool batch_first = stack[first + kBatchFirst].toBool();
  const int64_t batch = !batched      ? RegionDims::kReplicated
                        : batch_first ? 0
                                      : 1;
  RegionDims dims;
  dims.arguments.assign(kCount, RegionDims::kReplicated);
  dims.arguments[kInput] = batch;
  dims.arguments[kStates] = batched ? 1 : RegionDims::kReplicated;
  dims.returns = {batch, dims.arguments[kStates], dims.arguments[kStates]};
  dims.made_by_modules = {kStates};
  return dims;
}

c10::IValue
layer_states(const c10::IValue& states, int64_t layer, int64_t directions) {
  const auto part = [&](const at::Tensor& whole) {
    return whole.narrow(0, layer * directions, directions);
  };
  if (states.isTensor()) {
    return part(states.toTensor());
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& whole : states.toTensorVector()) {
    parts.push_back(part(whole));
  }
  return parts;
}

// Runs the layers one by one, because the dropout between them must draw the
// mesh's random numbers.
void run_layers(const c10::OperatorHandle& op, Stack& stack) {
  const std::vector<c10::IValue> all(stack.end() - kCount, stack.end());
  torch::jit::drop(stack, kCount);
  const int64_t layers = all[kLayers].toInt();
  const int64_t directions = all[kBidirectional].toBool() ? 2 : 1;
  const auto parameters = all[kParameters].toTensorVector();
  const auto each = static_cast<int64_t>(parameters.size()) / layers;
  const size_t returns = op.schema().returns().size();
  std::vector<std::vector<at::Tensor>> states(returns - 1);
  auto x = all[kInput].toTensor();
  for (int64_t layer = 0; layer < layers; ++layer) {
    auto arguments = all;
    arguments[kInput] = x;
    arguments[kStates] = layer_states(all[kStates], layer, directions);
    arguments[kParameters] = std::vector<at::Tensor>(
        parameters.begin() + layer * each,
        parameters.begin() + (layer + 1) * each);
    arguments[kLayers] = 1;
    arguments[kDropout] = 0.0;
    Stack local(arguments.begin(), arguments.end());
    run_region(op, local, dims_of(local, 0), op.schema().name());
    x = local[0].toTensor();
    for (size_t i = 1; i < returns; ++i) {
      states[i - 1].push_back(local[i].toTensor());
    }
    if (layer + 1 < layers) {
      x = at::dropout(x, all[kDropout].toDouble(), /*train=*/true);
    }
  }
  stack.emplace_back(x);
  for (const auto& each_layer : states) {
    stack.emplace_back(at::cat(each_layer, 0));
  }
}

} // namespace

void recurrent(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const size_t first = stack->size() - kCount;
  const bool drops = (*stack)[first + kDropout].toDouble() > 0 &&
                     (*stack)[first + kTrain].toBool() &&
                     (*stack)[first + kLayers].toInt() > 1;
  if (drops) {
    run_layers(op, *stack);
  } else {
    run_region(op, *stack, dims_of(*stack, first), op.schema().name());
  }
}

// The arguments of `op` are those of lstm_cell(input, hx, w_ih, w_hh, b_ih,
// b_hh).
void recurrent_cell(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const auto& input = (*stack)[stack->size() - count].toTensor();
  const int64_t batch = input.dim() == 2 ? 0 : RegionDims::kReplicated;
  RegionDims dims;
  dims.arguments.assign(count, RegionDims::kReplicated);
  dims.arguments[kInput] = batch;
  dims.arguments[kStates] = batch;
  dims.returns.assign(op.schema().returns().size(), batch);
  dims.made_by_modules = {kStates};
  run_region(op, *stack, dims, op.schema().name());
}

void recurrent_packed(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet,
    Stack*) {
  TORCH_CHECK_VALUE(
      false,
      "[",
      op.schema().name(),
      "] a packed sequence holds its batch in an order that no placement "
      "describes: DTensors cannot be packed. Pass padded sequences, or compute "
      "with to_local() and from_local() around the layer.");
}

std::set<std::string> register_regions(
    torch::Library& above,
    torch::Library& below) {
  std::set<std::string> names;
  const auto add = [&]<auto * kernel>(const std::string& name) {
    for (auto* library : {&above, &below}) {
      library->impl(
          name.c_str(), torch::CppFunction::makeFromBoxedFunction<kernel>());
    }
    names.insert("aten::" + name);
  };
  for (const std::string name : {"lstm", "gru", "rnn_tanh", "rnn_relu"}) {
    add.operator()<&recurrent>(name + ".input");
    add.operator()<&recurrent_packed>(name + ".data");
    add.operator()<&recurrent_cell>(name + "_cell");
  }
  return names;
}

} // namespace weft::dtensor::kernels
