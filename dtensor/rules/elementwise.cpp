// The common parts of the rules of elementwise ops: any dim may be sharded, a
// dim that is broadcast stays replicated, and some reductions commute with the
// op.

#include <algorithm>
#include <initializer_list>
#include <string>

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_strided.h>

#include "dtensor/rules/partial.h"
#include "dtensor/rules/pointwise.h"

namespace weft::dtensor {
namespace {

const at::Tensor* tensor_at(const OpCall& call, size_t argument) {
  for (const auto& input : call.tensors) {
    if (input.argument == argument) {
      return &input.tensor;
    }
  }
  return nullptr;
}

bool is_unsigned(at::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/false) &&
         !c10::isSignedType(dtype);
}

// Bools cannot be summed, integers cannot be averaged, and complex numbers have
// no order.
bool is_reducible(at::ScalarType dtype, const PartialPassThrough& carry) {
  const bool orders =
      carry.from == ReduceOp::kMax || carry.from == ReduceOp::kMin;
  if (orders) {
    return !c10::isComplexType(dtype) &&
           !(carry.computes && is_unsigned(dtype));
  }
  if (dtype == at::kBool) {
    return false;
  }
  return carry.from != ReduceOp::kAvg ||
         !c10::isIntegralType(dtype, /*includeBool=*/true);
}

bool applies(const OpCall& call, const PartialPassThrough& carry) {
  return std::ranges::all_of(carry.arguments, [&](size_t argument) {
    const auto* tensor = tensor_at(call, argument);
    return tensor && is_reducible(tensor->scalar_type(), carry);
  });
}

PartialPassThroughs same(
    std::vector<size_t> arguments,
    const rules::Reductions& ops) {
  PartialPassThroughs carries;
  for (const auto op : ops) {
    carries.push_back({arguments, op, op});
  }
  return carries;
}

PartialPassThroughs picking(PartialPassThroughs carries) {
  for (auto& carry : carries) {
    carry.computes = false;
  }
  return carries;
}

} // namespace

PartialPassThroughs operator+(
    PartialPassThroughs left,
    const PartialPassThroughs& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

PartialPassThroughs linear(std::vector<size_t> arguments) {
  return same(std::move(arguments), {ReduceOp::kSum, ReduceOp::kAvg});
}

PartialPassThroughs affine(std::vector<size_t> arguments) {
  return same(std::move(arguments), {ReduceOp::kAvg});
}

PartialPassThroughs monotone_increasing(size_t argument) {
  return same({argument}, {ReduceOp::kMax, ReduceOp::kMin});
}

PartialPassThroughs monotone_decreasing(size_t argument) {
  return {
      {{argument}, ReduceOp::kMax, ReduceOp::kMin},
      {{argument}, ReduceOp::kMin, ReduceOp::kMax}};
}

PartialPassThroughs multiplicative(std::vector<size_t> arguments) {
  return same(std::move(arguments), {ReduceOp::kProduct});
}

PartialPassThroughs moves(std::vector<size_t> arguments) {
  return picking(same(std::move(arguments), rules::every_reduction()));
}

PartialPassThroughs mixes(std::vector<size_t> arguments) {
  return picking(same(
      std::move(arguments), {ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}));
}

PartialPassThroughs selects(std::vector<size_t> arguments, ReduceOp op) {
  return picking(same(std::move(arguments), {op}));
}

std::vector<Strategy> shard_broadcast_dims(
    const OpCall& call,
    c10::IntArrayRef sizes,
    const std::function<Placements(int64_t dim)>& outputs) {
  std::vector<Strategy> strategies;
  const auto ndim = static_cast<int64_t>(sizes.size());
  for (int64_t dim = 0; dim < ndim; ++dim) {
    Strategy strategy{outputs(dim), {}};
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

std::vector<Strategy> shard_any_dim(
    const OpCall& call,
    const StrategyContext& context) {
  return shard_broadcast_dims(
      call, context.outputs.at(0).sizes, [](int64_t dim) {
        return Placements{Shard(dim)};
      });
}

void append_carries(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const PartialPassThroughs& carries) {
  for (const auto& carry : carries) {
    if (!applies(call, carry)) {
      continue;
    }
    Strategy strategy{{Partial(carry.to)}, {}};
    for (const auto& input : call.tensors) {
      const bool pending = std::ranges::find(carry.arguments, input.argument) !=
                           carry.arguments.end();
      strategy.inputs.push_back(pending ? Partial(carry.from) : Replicate());
    }
    strategies.push_back(std::move(strategy));
  }
}

// Uses TensorIterator directly, because not every op has a meta kernel.
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

Rule elementwise(PartialPassThroughs carries) {
  return elementwise(
      [carries = std::move(carries)](const OpCall&) { return carries; });
}

Rule elementwise(PartialPassThroughFn carries) {
  return {
      .strategies =
          [carries = std::move(carries)](
              const OpCall& call, const StrategyContext& context) {
            auto strategies = shard_any_dim(call, context);
            append_carries(strategies, call, carries(call));
            return strategies;
          },
      .infer = broadcast};
}

size_t argument_position(const OpCall& call, std::string_view name) {
  const auto index =
      call.op.schema().argumentIndexWithName(std::string(name).c_str());
  TORCH_INTERNAL_ASSERT(
      index.has_value(), call.name(), " has no argument ", name);
  return static_cast<size_t>(*index);
}

std::optional<double> real_number(const c10::IValue& value) {
  if (!value.isScalar() || value.isComplexDouble()) {
    return std::nullopt;
  }
  return value.toScalar().toDouble();
}

} // namespace weft::dtensor
