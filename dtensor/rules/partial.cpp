#include "dtensor/rules/partial.h"

#include <algorithm>
#include <set>

namespace weft::dtensor::rules {

Reductions every_reduction() {
  return {
      ReduceOp::kSum,
      ReduceOp::kAvg,
      ReduceOp::kMin,
      ReduceOp::kMax,
      ReduceOp::kProduct};
}

Reductions linear_reductions(const OpCall& call) {
  const auto dtype = call.tensors.at(0).tensor.scalar_type();
  if (c10::isIntegralType(dtype, /*includeBool=*/true)) {
    return {ReduceOp::kSum};
  }
  return {ReduceOp::kSum, ReduceOp::kAvg};
}

Reductions reductions_keeping(const c10::IValue& number) {
  Reductions reductions{ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax};
  if (!number.isScalar()) {
    return reductions;
  }
  const auto scalar = number.toScalar();
  const bool zero = scalar.equal(0);
  if (zero) {
    reductions.push_back(ReduceOp::kSum);
  }
  if (zero || scalar.equal(1)) {
    reductions.push_back(ReduceOp::kProduct);
  }
  return reductions;
}

void add_pending(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const Reductions& reductions,
    std::initializer_list<std::string_view> inputs) {
  const auto& arguments = call.op.schema().arguments();
  for (const auto op : reductions) {
    Strategy strategy{{Partial(op)}, {}};
    for (const auto& tensor : call.tensors) {
      const auto& name = arguments[tensor.argument].name();
      const bool pending = std::ranges::find(inputs, name) != inputs.end();
      strategy.inputs.push_back(pending ? Partial(op) : Replicate());
    }
    strategies.push_back(std::move(strategy));
  }
}

Strategy cut_strategy(
    const OpCall& call,
    Placement output,
    std::initializer_list<std::pair<std::string_view, Placement>> inputs) {
  const auto& arguments = call.op.schema().arguments();
  Strategy strategy{{output}, Placements(call.tensors.size(), Replicate())};
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    for (const auto& [name, placement] : inputs) {
      if (arguments[call.tensors[i].argument].name() == name) {
        strategy.inputs[i] = placement;
      }
    }
  }
  return strategy;
}

bool divides(int64_t size, const StrategyContext& context) {
  return size > 0 && size % context.all_shards == 0;
}

bool never_empty(
    int64_t size,
    const OpCall& call,
    const StrategyContext& context) {
  if (divides(size, context)) {
    return true;
  }
  const int64_t ndim = call.mesh().ndim();
  for (uint64_t cut = 0; cut < (uint64_t{1} << ndim); ++cut) {
    std::set<int64_t> parts{size};
    for (int64_t d = 0; d < ndim; ++d) {
      if (!(cut >> d & 1U) && d != context.mesh_dim) {
        continue;
      }
      std::set<int64_t> smaller;
      for (const int64_t part : parts) {
        for (int64_t i = 0; i < call.mesh().size(d); ++i) {
          smaller.insert(shard_range(part, call.mesh().size(d), i).length);
        }
      }
      parts = std::move(smaller);
    }
    if (parts.contains(0)) {
      return false;
    }
  }
  return true;
}

} // namespace weft::dtensor::rules
