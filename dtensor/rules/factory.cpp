// Ops that take sizes and options from a tensor, not values: the input never
// moves.

#include <algorithm>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

// The result is where the input does.
std::vector<Strategy> like_input(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& placement = call.tensors[0].spec->placement(context.mesh_dim);
  if (placement.is_partial()) {
    return {};
  }
  return {{{placement}, {placement}}};
}

// zeros and uninitialised memory may stand for a pending reduction as well.
std::vector<Strategy> like_input_or_partial(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& placement = call.tensors[0].spec->placement(context.mesh_dim);
  return {{{placement}, {placement}}};
}

// So may a number that the reduction leaves alone.
std::vector<Strategy> filled_like(
    const OpCall& call,
    const StrategyContext& context) {
  const auto& placement = call.tensors[0].spec->placement(context.mesh_dim);
  const bool full = call.name() == "aten::full_like";
  const auto kept =
      rules::reductions_keeping(full ? call.arguments[1] : c10::IValue(1));
  if (placement.is_partial() &&
      std::ranges::find(kept, placement.reduce_op()) == kept.end()) {
    return {};
  }
  return {{{placement}, {placement}}};
}

// new_*(sizes): cut as the input where the cut dim is as long as the input's.
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

// The global strides' order of dims, packed for the local sizes.
Rule::LocalArguments part_sizes_and_strides(const LocalCall& local) {
  const auto strides = local.call.arguments[2].toIntVector();
  const auto& sizes = local.outputs.at(0).sizes;
  return {{1, sizes}, {2, dense_strides(sizes, strides)}};
}

// eye(n) and eye(n, m), into a tensor that is there.
std::vector<OutputMeta> eye_sizes(const OpCall& call) {
  const int64_t rows = rules::argument(call, "n").toInt();
  const auto columns = rules::argument(call, "m");
  return {rules::contiguous({rows, columns.isInt() ? columns.toInt() : rows})};
}

} // namespace

void add_factory_rules(RuleTable& table) {
  // Made replicated, which keeps its part.
  table.add("eye", {.infer = eye_sizes});
  table.add(
      "zeros_like", {.strategies = like_input_or_partial, .value_free = true});
  // Uninitialised memory is written to next (1 / x is empty_like, fill_ and
  // div_), which a Partial sum would refuse.
  table.add(
      "empty_like ones_like full_like",
      {.strategies = filled_like, .value_free = true});
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
