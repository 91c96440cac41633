// Rules of ops that take sizes and options, but no values, from a tensor. The
// input is never redistributed.

#include <algorithm>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

std::vector<Strategy> like_input(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& placement = call.tensors[0].spec->placement(context.mesh_dim);
  if (placement.is_partial()) {
    return {};
  }
  return {{{placement}, {placement}}};
}

// The result may be a Partial sum or average of zeros, because derivative
// formulas add to it. For other reductions it is replicated.
std::vector<Strategy> zeros_like(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& placement = call.tensors[0].spec->placement(context.mesh_dim);
  const bool may_be_partial = placement.is_partial(ReduceOp::kSum) ||
                              placement.is_partial(ReduceOp::kAvg);
  return may_be_partial ? std::vector<Strategy>{{{placement}, {placement}}}
                        : like_input(call, context);
}

std::vector<Strategy> new_like(
    const OpCall& call,
    const StrategyContext& context) {
  const auto in = call.tensors[0].sizes();
  const auto& out = context.outputs.at(0).sizes;
  const auto& placement = call.tensors[0].spec->placement(context.mesh_dim);
  const bool stays = placement.is_shard() && in.size() == out.size() &&
                     in[placement.tensor_dim()] == out[placement.tensor_dim()];
  if (!stays && in != c10::IntArrayRef(out)) {
    return {};
  }
  return like_input(call, context);
}

Rule::LocalArguments part_sizes_and_strides(const LocalCall& local) {
  const auto strides = local.call.arguments[2].toIntVector();
  const auto& sizes = local.outputs.at(0).sizes;
  return {{1, sizes}, {2, dense_strides(sizes, strides)}};
}

// Serves eye(n) and eye(n, m) with an out tensor.
std::vector<OutputMeta> eye_sizes(const OpCall& call) {
  const int64_t rows = rules::argument(call, "n").toInt();
  const auto columns = rules::argument(call, "m");
  return {rules::contiguous({rows, columns.isInt() ? columns.toInt() : rows})};
}

} // namespace

void add_factory_rules(RuleTable& table) {
  // Every rank computes the full matrix and keeps its shard.
  table.add("eye", {.infer = eye_sizes});
  table.add("zeros_like", {.strategies = zeros_like, .value_free = true});
  // The result of a Partial input is replicated, because an op usually writes
  // to it next (2 / x is empty_like, fill_ and div_), which a Partial tensor
  // would reject.
  table.add(
      "empty_like ones_like full_like",
      {.strategies = like_input, .value_free = true});
  table.add(
      "new_empty new_zeros new_ones new_full",
      {.strategies = new_like,
       .localize = rules::part_sizes,
       .value_free = true});
  table.add(
      "new_empty_strided",
      {.strategies = new_like,
       .localize = part_sizes_and_strides,
       .value_free = true});
}

} // namespace weft::dtensor
