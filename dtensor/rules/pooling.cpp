// Rules of pooling. Each channel of each sample is independent. Windows
// overlap, so spatial dims must be replicated.

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/planes.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

// Shards samples and channels, which all tensors of the call share.
std::vector<Strategy> alone(
    const OpCall& call,
    const StrategyContext& context) {
  return rules::cut_planes(
      call,
      context,
      {"self", "grad_output", "indices"},
      static_cast<int64_t>(context.outputs.size()));
}

std::vector<Strategy> average(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = alone(call, context);
  rules::add_linear(strategies, call, {"self"});
  return strategies;
}

std::vector<Strategy> pooling_backward(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = alone(call, context);
  rules::add_linear(strategies, call, {"grad_output"});
  return strategies;
}

// The op moves the values and puts zeros between them, which every reduction
// preserves.
std::vector<Strategy> unpool(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = alone(call, context);
  rules::add_pending(strategies, call, rules::every_reduction(), {"self"});
  return strategies;
}

// random_samples is [N, C, dims], with N = 1 if the input has no sample dim.
std::vector<Strategy> fractional(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = alone(call, context);
  const bool batched = call.tensors[0].dim() == rules::plane_dims(call) + 2;
  for (auto& strategy : strategies) {
    const auto& cut = strategy.inputs[0];
    strategy.inputs[1] = Shard(cut.tensor_dim() + (batched ? 0 : 1));
  }
  return strategies;
}

// --- sizes ------------------------------------------------------------------

std::vector<int64_t> planes_of(
    const TensorArgument& input,
    std::vector<int64_t> plane) {
  const auto leading =
      input.sizes().slice(0, input.sizes().size() - plane.size());
  plane.insert(plane.begin(), leading.begin(), leading.end());
  return plane;
}

bool four_dims_channels_last(const TensorArgument& input) {
  return input.dim() == 4 && rules::has_channels_last(input);
}

std::vector<OutputMeta> adaptive_sizes(const OpCall& call) {
  const auto& input = call.tensors[0];
  return {rules::laid_out(
      planes_of(input, call.arguments[1].toIntVector()),
      four_dims_channels_last(input))};
}

std::vector<OutputMeta> input_sizes(const OpCall& call) {
  const auto& input = *rules::tensor_argument(call, "self");
  return {rules::laid_out(
      input.sizes().vec(), input.dim() > 3 && rules::has_channels_last(input))};
}

std::vector<OutputMeta> contiguous_input_sizes(const OpCall& call) {
  return {
      rules::contiguous(rules::tensor_argument(call, "self")->sizes().vec())};
}

std::vector<OutputMeta> unpooled_sizes(const OpCall& call) {
  const auto& input = call.tensors[0];
  return {rules::laid_out(
      planes_of(input, call.arguments[2].toIntVector()),
      four_dims_channels_last(input))};
}

// Returns the number of windows that fit. With ceil_mode, a window that starts
// inside the input or its left padding may extend over the end.
int64_t windows(
    int64_t size,
    int64_t kernel,
    int64_t stride,
    int64_t padding,
    int64_t dilation,
    bool ceil_mode) {
  const int64_t rest = size + 2 * padding - dilation * (kernel - 1) - 1;
  int64_t count = (rest + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (count - 1) * stride >= size + padding) {
    --count;
  }
  return count;
}

// max_pool3d_with_indices(self, kernel, stride, padding, dilation, ceil_mode).
std::vector<OutputMeta> max_pool3d_sizes(const OpCall& call) {
  const auto& input = call.tensors[0];
  const auto number = [&](size_t argument, size_t dim) {
    const auto list = call.arguments[argument].toIntVector();
    return list.size() == 1 ? list[0] : list.at(dim);
  };
  const bool strided = !call.arguments[2].toIntVector().empty();
  std::vector<int64_t> plane;
  for (size_t d = 0; d < 3; ++d) {
    plane.push_back(windows(
        input.sizes()[input.dim() - 3 + d],
        number(1, d),
        number(strided ? 2 : 1, d),
        number(3, d),
        number(4, d),
        call.arguments[5].toBool()));
  }
  const auto meta = rules::laid_out(
      planes_of(input, plane),
      input.dim() == 5 && rules::has_channels_last(input));
  return {meta, meta};
}

} // namespace

void add_pooling_rules(RuleTable& table) {
  table.add("avg_pool2d avg_pool3d", {.strategies = average});
  table.add(
      "_adaptive_avg_pool2d _adaptive_avg_pool3d",
      {.strategies = average, .infer = adaptive_sizes});
  table.add(
      "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward",
      {.strategies = pooling_backward, .infer = input_sizes});
  table.add(
      "avg_pool2d_backward avg_pool3d_backward adaptive_max_pool2d_backward "
      "adaptive_max_pool3d_backward max_pool2d_with_indices_backward "
      "fractional_max_pool2d_backward",
      {.strategies = pooling_backward});
  table.add(
      "max_pool3d_with_indices_backward",
      {.strategies = pooling_backward, .infer = input_sizes});
  table.add(
      "fractional_max_pool3d_backward",
      {.strategies = pooling_backward, .infer = contiguous_input_sizes});
  table.add(
      "max_pool2d_with_indices adaptive_max_pool2d adaptive_max_pool3d",
      {.strategies = alone});
  table.add(
      "max_pool3d_with_indices",
      {.strategies = alone, .infer = max_pool3d_sizes});
  table.add(
      "fractional_max_pool2d fractional_max_pool3d",
      {.strategies = fractional});
  table.add(
      "max_unpool2d max_unpool3d",
      {.strategies = unpool, .infer = unpooled_sizes});
}

} // namespace weft::dtensor
