// Rules of Fourier transforms. The dims that are not transformed may be
// sharded, and sums may stay Partial.

#include <algorithm>

#include <ATen/ops/zeros.h>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

std::vector<Strategy> transform(const OpCall& call, const StrategyContext&) {
  auto names = rules::all_dims(call.tensors[0].dim());
  for (const int64_t d : call.dims_argument(1, call.tensors[0].dim())) {
    names[d] = '.';
  }
  auto strategies = rules::cut_named_dims(call, {{"self", names}}, {names});
  rules::add_linear(strategies, call, {"self"});
  return strategies;
}

// Runs the transform on a tensor of two rows per dim and returns the strides of
// the result. The order of the dims in memory depends on the library that
// libtorch was built with.
std::vector<int64_t> order_of_result(const OpCall& call) {
  const auto& input = call.tensors[0];
  const std::vector<int64_t> small(input.dim(), 2);
  const auto local =
      at::zeros(small, input.tensor.dtype())
          .as_strided(small, dense_strides(small, input.tensor.strides()));
  constexpr int64_t kArguments = 4;
  torch::jit::Stack stack(
      call.arguments.begin(), call.arguments.begin() + kArguments);
  stack[0] = local;
  if (call.name() == "aten::_fft_c2r") {
    stack[3] = 2;
  }
  // Calls the functional overload, because the result of an out= overload has
  // the strides of the out tensor.
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(call.op.schema().name().c_str(), "")
      .callBoxed(&stack);
  return stack[0].toTensor().strides().vec();
}

std::vector<OutputMeta> transformed_sizes(const OpCall& call) {
  const auto& input = call.tensors[0];
  auto sizes = input.sizes().vec();
  const auto dims = call.dims_argument(1, input.dim());
  if (dims.empty()) {
    return {rules::like(input)};
  }
  if (call.name() == "aten::_fft_c2r") {
    sizes[dims.back()] = call.arguments[3].toInt();
  } else if (call.name() == "aten::_fft_r2c" && call.arguments[3].toBool()) {
    sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  }
  auto strides = dense_strides(sizes, order_of_result(call));
  return {{std::move(sizes), std::move(strides)}};
}

} // namespace

void add_fft_rules(RuleTable& table) {
  table.add(
      "_fft_r2c _fft_c2r _fft_c2c",
      {.strategies = transform, .infer = transformed_sizes});
}

} // namespace weft::dtensor
