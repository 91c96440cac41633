// Rules of the backward forms of elementwise ops, and of elementwise ops that
// treat one dim or one tensor differently.

#include <algorithm>

#include "dtensor/rules/pointwise.h"

namespace weft::dtensor {
namespace {

// ---- log_sigmoid ------------------------------------------------------------

// On CUDA the buffer of log_sigmoid has no elements.
bool is_empty_buffer(const OpCall& call, const TensorArgument& input) {
  return input.tensor.numel() == 0 && call.tensors[0].tensor.numel() != 0;
}

std::vector<OutputMeta> log_sigmoid_outputs(const OpCall& call) {
  const auto& input = call.tensors[0];
  if (input.tensor.device().is_cpu()) {
    return {2, {input.sizes().vec(), row_major_strides(input.sizes())}};
  }
  auto outputs = broadcast(call);
  outputs[1] = {{0}, {1}};
  return outputs;
}

std::vector<Strategy> log_sigmoid(
    const OpCall& call,
    const StrategyContext& context) {
  const bool whole = context.outputs[1].sizes != context.outputs[0].sizes;
  return shard_broadcast_dims(call, context.outputs[0].sizes, [&](int64_t dim) {
    return Placements{Shard(dim), whole ? Replicate() : Shard(dim)};
  });
}

std::vector<OutputMeta> log_sigmoid_gradient(const OpCall& call) {
  if (!is_empty_buffer(call, call.tensors.back())) {
    return broadcast(call);
  }
  OpCall without = call;
  without.tensors.pop_back();
  return broadcast(without);
}

std::vector<Strategy> log_sigmoid_backward(
    const OpCall& call,
    const StrategyContext& context) {
  std::vector<Strategy> strategies;
  if (is_empty_buffer(call, call.tensors.back())) {
    OpCall without = call;
    without.tensors.pop_back();
    strategies = shard_any_dim(without, context);
    for (auto& strategy : strategies) {
      strategy.inputs.push_back(Replicate());
    }
  } else {
    strategies = shard_any_dim(call, context);
  }
  append_carries(strategies, call, linear({0}));
  return strategies;
}

// ---- halves of one dim ------------------------------------------------------

std::vector<Strategy> gated(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  const int64_t halved =
      call.dim_argument(argument_position(call, "dim"), ndim);
  std::vector<Strategy> strategies;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != halved) {
      strategies.push_back(
          {{Shard(d)}, Placements(call.tensors.size(), Shard(d))});
    }
  }
  return strategies;
}

std::vector<Strategy> gated_backward(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = gated(call, context);
  append_carries(strategies, call, linear({0}));
  return strategies;
}

Rule::Infer like_argument(std::string_view name) {
  return [name](const OpCall& call) -> std::vector<OutputMeta> {
    const size_t position = argument_position(call, name);
    const auto input =
        std::ranges::find(call.tensors, position, &TensorArgument::argument);
    return {{input->sizes().vec(), row_major_strides(input->sizes())}};
  };
}

// ---- a dim of channels ------------------------------------------------------

// fake_quantize_per_channel(self, scale [C], zero_point [C], axis): the kernel
// takes the minimum of the zero points, so the channels are sharded only if
// every rank has some.
std::vector<Strategy> per_channel(
    const OpCall& call,
    const StrategyContext& context) {
  const int64_t ndim = call.tensors[0].dim();
  const int64_t axis = call.dim_argument(argument_position(call, "axis"), ndim);
  std::vector<Strategy> strategies;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != axis) {
      strategies.push_back({{Shard(d)}, {Shard(d), Replicate(), Replicate()}});
    } else if (call.tensors[0].sizes()[d] % context.all_shards == 0) {
      strategies.push_back(
          {{Shard(d)}, {Shard(d), Shard(0), Shard(0)}, /*chunked_only=*/true});
    }
  }
  return strategies;
}

std::vector<OutputMeta> like_first(const OpCall& call) {
  const auto& input = call.tensors[0];
  return {
      call.op.schema().returns().size(),
      {input.sizes().vec(),
       dense_strides(input.sizes(), input.tensor.strides())}};
}

// ---- membership -------------------------------------------------------------

// The elements or the test elements may be sharded. An element is found if one
// rank finds it in its shard of the test elements (max). With `invert`, no rank
// may find it (min).
std::vector<Strategy> is_in(const OpCall& call, const StrategyContext&) {
  std::vector<Strategy> strategies;
  const bool inverted =
      call.arguments[argument_position(call, "invert")].toBool();
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const bool looked_for = call.tensors[i].argument == 0;
    for (int64_t d = 0; d < call.tensors[i].dim(); ++d) {
      Strategy strategy{
          {looked_for ? Shard(d)
                      : Partial(inverted ? ReduceOp::kMin : ReduceOp::kMax)},
          Placements(call.tensors.size(), Replicate())};
      strategy.inputs[i] = Shard(d);
      strategies.push_back(std::move(strategy));
    }
  }
  return strategies;
}

// Serves the out= form. The other forms have a kernel, which draws the same
// slopes on every mesh.
std::vector<Strategy> leaky_with_noise(
    const OpCall& call,
    const StrategyContext& context) {
  TORCH_CHECK_VALUE(
      !call.arguments[argument_position(call, "training")].toBool(),
      "[",
      call.name(),
      "] draws no random slopes into an out tensor; arguments ",
      describe_arguments(call),
      ". Use the form that returns a new tensor. (",
      call.mesh().describe_rank(),
      ")");
  return shard_any_dim(call, context);
}

// The result is row-major. libtorch's meta kernel returns wrong sizes or
// strides if `elements` is a number.
std::vector<OutputMeta> is_in_sizes(const OpCall& call) {
  if (!call.arguments[0].isTensor()) {
    return {{{}, {}}};
  }
  const auto sizes = call.tensors[0].sizes();
  return {{sizes.vec(), row_major_strides(sizes)}};
}

} // namespace

void add_pointwise_backward_rules(RuleTable& table) {
  table.add(
      "_masked_scale _prelu_kernel_backward elu_backward gelu_backward "
      "hardshrink_backward hardsigmoid_backward hardswish_backward "
      "hardtanh_backward leaky_relu_backward logit_backward mish_backward "
      "native_dropout_backward rrelu_with_noise_backward sigmoid_backward "
      "silu_backward softplus_backward softshrink_backward tanh_backward "
      "threshold_backward",
      elementwise(linear({0})));
  table.add("_prelu_kernel", elementwise());
  table.add(
      "rrelu_with_noise", {.strategies = leaky_with_noise, .infer = broadcast});
  table.add(
      "log_sigmoid_forward",
      {.strategies = log_sigmoid, .infer = log_sigmoid_outputs});
  table.add(
      "log_sigmoid_backward",
      {.strategies = log_sigmoid_backward, .infer = log_sigmoid_gradient});
  table.add("glu", {.strategies = gated});
  table.add(
      "glu_backward",
      {.strategies = gated_backward, .infer = like_argument("self")});
  table.add("glu_jvp", {.strategies = gated, .infer = like_argument("glu")});
  table.add(
      "glu_backward_jvp",
      {.strategies = gated, .infer = like_argument("grad_x")});
  table.add("isin", {.strategies = is_in, .infer = is_in_sizes});
  table.add(
      "fake_quantize_per_channel_affine_cachemask",
      {.strategies = per_channel, .infer = like_first});
}

} // namespace weft::dtensor
