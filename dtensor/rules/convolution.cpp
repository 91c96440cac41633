// Rules of convolutions. Samples and output channels are independent, input
// channels are summed over, and groups are separate convolutions. Windows
// overlap, so spatial dims must be replicated.

#include <array>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/planes.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

bool is_transposed(const OpCall& call) {
  return rules::argument(call, "transposed").toBool();
}

// The names of the dims. The weight is [out, in / groups, ..], or
// [in, out / groups, ..] of a transposed convolution. With several groups each
// rank has full groups, and the letter 'g' shards input and output channels
// together.
struct Names {
  std::string input;
  std::string weight;
  std::string output;
  std::string bias;
};

Names channel_names(const OpCall& call, const StrategyContext& context) {
  const auto weight = rules::tensor_argument(call, "weight")->sizes();
  const int64_t groups = rules::argument(call, "groups").toInt();
  if (groups > 1) {
    return rules::divides(groups, context) ? Names{"ng", "g.", "ng", "g"}
                                           : Names{"n.", "..", "n.", "."};
  }
  const bool transposed = is_transposed(call);
  const std::string in(
      1,
      rules::never_empty(weight[transposed ? 0 : 1], call, context) ? 'i'
                                                                    : '.');
  const std::string out(
      1,
      rules::never_empty(weight[transposed ? 1 : 0], call, context) ? 'o'
                                                                    : '.');
  return {"n" + in, transposed ? in + out : out + in, "n" + out, out};
}

// No kernel accepts a local tensor without channels, which an uneven sharding
// of the channels can leave.
void mark_chunked(std::vector<Strategy>& strategies, size_t input) {
  for (auto& strategy : strategies) {
    strategy.chunked_only = strategy.inputs[input] != Shard(0);
  }
}

// If the result is a Partial sum, the bias must be one too, so that it is added
// once.
std::vector<Strategy> convolution(
    const OpCall& call,
    const StrategyContext& context) {
  const auto names = channel_names(call, context);
  auto strategies = rules::cut_named_dims(
      call,
      {{"input", names.input}, {"weight", names.weight}, {"bias", names.bias}},
      {"+" + names.output});
  mark_chunked(strategies, 0);
  if (rules::tensor_argument(call, "bias")) {
    for (auto& strategy : strategies) {
      if (strategy.outputs[0].is_partial()) {
        strategy.inputs.back() = strategy.outputs[0];
      }
    }
    for (const auto* argument : {"input", "weight", "bias"}) {
      rules::add_pending(strategies, call, {ReduceOp::kAvg}, {argument});
    }
  }
  const auto linear = rules::linear_reductions(call);
  rules::add_pending(strategies, call, linear, {"input", "bias"});
  rules::add_pending(strategies, call, linear, {"weight", "bias"});
  return strategies;
}

// Returns which gradients the kernel returns. oneDNN returns the weight's
// gradient together with the bias's, even if `output_mask` does not request it.
std::array<bool, 3> made_gradients(const OpCall& call) {
  const auto mask = rules::argument(call, "output_mask").toBoolList();
  return {mask.get(0), mask.get(1) || mask.get(2), mask.get(2)};
}

// The outputs are the gradients of input, weight and bias. An undefined
// gradient counts as replicated.
std::vector<Strategy> convolution_backward(
    const OpCall& call,
    const StrategyContext& context) {
  const auto names = channel_names(call, context);
  std::vector<std::string> outputs{
      "+" + names.input, "+" + names.weight, "+" + names.bias};
  auto strategies = rules::cut_named_dims(
      call,
      {{"grad_output", names.output},
       {"input", names.input},
       {"weight", names.weight}},
      outputs);
  // The gradient of the bias does not depend on the input channels, so it is
  // replicated if they are sharded.
  for (auto& strategy : strategies) {
    if (names.input.ends_with('i') && strategy.inputs[1] == Shard(1)) {
      strategy.outputs[2] = Replicate();
    }
  }
  mark_chunked(strategies, 1);
  rules::add_linear(strategies, call, {"grad_output"}, {true, true, true});
  rules::add_linear(strategies, call, {"input"}, {false, true, false});
  rules::add_linear(strategies, call, {"weight"}, {true, false, false});
  const auto made = made_gradients(call);
  for (auto& strategy : strategies) {
    for (size_t i = 0; i < 3; ++i) {
      strategy.outputs[i] = made[i] ? strategy.outputs[i] : Replicate();
    }
  }
  return strategies;
}

Rule::LocalArguments groups_of_part(const LocalCall& local) {
  const auto& call = local.call;
  const int64_t groups = rules::argument(call, "groups").toInt();
  Rule::LocalArguments arguments;
  if (groups > 1) {
    const bool backward = rules::argument_position(call, "grad_output") >= 0;
    const size_t weight = backward ? 2 : 1;
    arguments.emplace_back(
        rules::argument_position(call, "groups"),
        groups * local.inputs[weight].sizes[0] /
            call.tensors[weight].sizes()[0]);
  }
  return arguments;
}

Rule::LocalArguments local_backward(const LocalCall& local) {
  auto arguments = groups_of_part(local);
  const auto position = rules::argument_position(local.call, "bias_sizes");
  if (local.call.arguments[position].isIntList()) {
    arguments.emplace_back(
        position, std::vector<int64_t>{local.inputs[0].sizes[1]});
  }
  return arguments;
}

// --- sizes ------------------------------------------------------------------

bool works_channels_last(const OpCall& call) {
  const auto& input = *rules::tensor_argument(call, "input");
  return input.dim() > 3 &&
         (rules::has_channels_last(input) ||
          rules::has_channels_last(*rules::tensor_argument(call, "weight")));
}

int64_t at_dim(const std::vector<int64_t>& numbers, size_t dim) {
  return numbers.size() == 1 ? numbers[0] : numbers.at(dim);
}

std::vector<OutputMeta> convolution_sizes(const OpCall& call) {
  const auto input = rules::tensor_argument(call, "input")->sizes();
  const auto weight = rules::tensor_argument(call, "weight")->sizes();
  const auto ints = [&](const char* name) {
    return rules::argument(call, name).toIntVector();
  };
  const auto stride = ints("stride");
  const auto padding = ints("padding");
  const auto dilation = ints("dilation");
  const auto output_padding = ints("output_padding");
  const bool transposed = is_transposed(call);
  const int64_t groups = rules::argument(call, "groups").toInt();
  std::vector<int64_t> sizes{
      input[0], transposed ? weight[1] * groups : weight[0]};
  for (size_t d = 0; d + 2 < input.size(); ++d) {
    const int64_t kernel = at_dim(dilation, d) * (weight[d + 2] - 1) + 1;
    const int64_t pad = 2 * at_dim(padding, d);
    sizes.push_back(
        transposed ? (input[d + 2] - 1) * at_dim(stride, d) - pad + kernel +
                         at_dim(output_padding, d)
                   : (input[d + 2] + pad - kernel) / at_dim(stride, d) + 1);
  }
  return {rules::laid_out(std::move(sizes), works_channels_last(call))};
}

std::vector<OutputMeta> gradient_sizes(const OpCall& call) {
  const bool channels_last = works_channels_last(call);
  const auto made = made_gradients(call);
  std::vector<OutputMeta> metas(3);
  if (made[0]) {
    metas[0] = rules::laid_out(call.tensors[1].sizes().vec(), channels_last);
  }
  if (made[1]) {
    auto sizes = call.tensors[2].sizes().vec();
    const auto mask = rules::argument(call, "output_mask").toBoolList();
    // libtorch computes conv1d as conv2d, and does not remove the added dim
    // from a weight gradient that was not requested.
    if (!mask.get(1) && sizes.size() == 3) {
      sizes.insert(sizes.begin() + 2, 1);
    }
    metas[1] = rules::laid_out(std::move(sizes), channels_last);
  }
  if (made[2]) {
    metas[2] = rules::contiguous({call.tensors[0].sizes()[1]});
  }
  return metas;
}

} // namespace

void add_convolution_rules(RuleTable& table) {
  table.add(
      "convolution _convolution",
      {.strategies = convolution,
       .infer = convolution_sizes,
       .localize = groups_of_part});
  table.add(
      "convolution_backward",
      {.strategies = convolution_backward,
       .infer = gradient_sizes,
       .localize = local_backward});
}

} // namespace weft::dtensor
