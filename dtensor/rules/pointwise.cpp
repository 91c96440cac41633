// Ops that compute each output element from the elements at the same place:
// any dim can be cut, broadcast inputs stay whole.

#include <ATen/TensorIterator.h>

#include "dtensor/rule.h"

namespace weft::dtensor {
namespace {

// Out arguments come last and are cut like the output.
std::vector<Strategy> shard_any_dim(
    const OpCall& call,
    const StrategyContext& context) {
  std::vector<Strategy> strategies;
  const auto& sizes = context.outputs.at(0).sizes;
  const auto ndim = static_cast<int64_t>(sizes.size());
  for (int64_t dim = 0; dim < ndim; ++dim) {
    Strategy strategy{{Shard(dim)}, {}};
    bool any = false;
    for (const auto& input : call.tensors) {
      const int64_t own = dim - (ndim - input.dim());
      const bool whole =
          own < 0 || (input.sizes()[own] == 1 && sizes[dim] != 1);
      strategy.inputs.push_back(whole ? Replicate() : Shard(own));
      any |= !whole;
    }
    if (any) {
      strategies.push_back(std::move(strategy));
    }
  }
  return strategies;
}

void carry_partial(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    std::initializer_list<ReduceOp> ops,
    const std::vector<bool>& partial) {
  for (const auto op : ops) {
    Strategy strategy{{Partial(op)}, {}};
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      strategy.inputs.push_back(
          i < partial.size() && partial[i] ? Partial(op) : Replicate());
    }
    strategies.push_back(std::move(strategy));
  }
}

// f(a) with f(a + b) = f(a) + f(b): a pending sum may wait.
std::vector<Strategy> linear_unary(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = shard_any_dim(call, context);
  carry_partial(strategies, call, {ReduceOp::kSum, ReduceOp::kAvg}, {true});
  return strategies;
}

// A conversion to whole numbers or bool rounds every term of a pending
// reduction, not their sum.
bool rounds_to_integer(const OpCall& call) {
  const auto to = call.name() == "aten::_to_copy" && call.arguments[1].isInt()
                      ? call.arguments[1].toScalarType()
                      : call.tensors[0].tensor.scalar_type();
  return c10::isIntegralType(to, /*includeBool=*/true) &&
         to != call.tensors.back().tensor.scalar_type();
}

// Values are moved, not computed: any pending reduction may wait.
std::vector<Strategy> copy_like(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = shard_any_dim(call, context);
  if (rounds_to_integer(call)) {
    return strategies;
  }
  carry_partial(
      strategies,
      call,
      {ReduceOp::kSum,
       ReduceOp::kAvg,
       ReduceOp::kMin,
       ReduceOp::kMax,
       ReduceOp::kProduct},
      {true, true});
  return strategies;
}

// a + b of two pending sums is a pending sum; of a sum and a value it is not.
std::vector<Strategy> add_like(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = shard_any_dim(call, context);
  if (call.tensors.size() >= 2 && call.tensors[1].spec) {
    carry_partial(
        strategies, call, {ReduceOp::kSum, ReduceOp::kAvg}, {true, true});
  }
  return strategies;
}

std::vector<Strategy> mul_like(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = linear_unary(call, context);
  if (call.tensors.size() >= 2 && call.tensors[1].spec) {
    carry_partial(
        strategies, call, {ReduceOp::kSum, ReduceOp::kAvg}, {false, true});
  }
  return strategies;
}

// zero_: zeros reduce to zero however many are added.
std::vector<Strategy> zero_like(
    const OpCall& call,
    const StrategyContext& context) {
  return linear_unary(call, context);
}

// Broadcast sizes, with the dims in memory in the inputs' order: what
// TensorIterator makes, asked of itself. Not every op has a meta kernel.
std::vector<OutputMeta> broadcast(const OpCall& call) {
  std::vector<at::Tensor> inputs;
  for (const auto& input : call.tensors) {
    inputs.push_back(at::empty_strided(
        input.sizes(),
        input.tensor.strides(),
        at::TensorOptions(at::kFloat).device(at::kMeta)));
  }
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .declare_static_dtype_and_device(at::kFloat, at::kMeta)
      .add_owned_output(at::Tensor());
  for (const auto& input : inputs) {
    config.add_owned_const_input(input);
  }
  auto iterator = config.build();
  const auto& output = iterator.output();
  return {
      call.op.schema().returns().size(),
      {output.sizes().vec(), output.strides().vec()}};
}

} // namespace

void add_pointwise_rules(RuleTable& table) {
  table.add(
      "abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not "
      "bitwise_or bitwise_xor ceil clamp clamp_max clamp_min copysign cos cosh "
      "deg2rad digamma elu elu_backward eq erf erfc erfinv exp exp2 expm1 "
      "floor floor_divide fmax fmin fmod frac ge gelu gelu_backward "
      "gt hardsigmoid hardsigmoid_backward hardswish "
      "hardswish_backward hardtanh hardtanh_backward heaviside hypot "
      "isinf isnan isneginf isposinf le leaky_relu leaky_relu_backward lerp "
      "lgamma log log10 log1p log2 log_sigmoid_forward log_sigmoid_backward "
      "logaddexp logaddexp2 logical_and logical_not logical_or logical_xor "
      "logit lt masked_fill maximum minimum mish mish_backward "
      "nan_to_num ne nextafter polar pow reciprocal relu remainder round "
      "rsqrt rsub sgn sigmoid sigmoid_backward sign signbit silu "
      "silu_backward sin sinc sinh softplus softplus_backward softshrink "
      "sqrt tan tanh tanh_backward threshold threshold_backward trunc "
      "xlogy addcmul addcdiv fill where.self",
      {.strategies = shard_any_dim, .infer = broadcast});
  table.add(
      "neg conj_physical rad2deg "
      "native_dropout_backward",
      {.strategies = linear_unary, .infer = broadcast});
  table.add("clone _to_copy copy copy_", {.strategies = copy_like});
  table.add("add sub", {.strategies = add_like, .infer = broadcast});
  table.add("mul div.Scalar", {.strategies = mul_like, .infer = broadcast});
  // Dividing by a tensor is linear in the dividend; rounding modes are not.
  table.add("div", {.strategies = shard_any_dim, .infer = broadcast});
  table.add(
      "div.Tensor div_.Tensor div_.Scalar",
      {.strategies = linear_unary, .infer = broadcast});
  table.add("zero", {.strategies = zero_like});
}

} // namespace weft::dtensor
