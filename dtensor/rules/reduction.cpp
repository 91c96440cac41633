// Rules of ops that reduce along dims. The other dims may be sharded. A reduced
// dim may be sharded if a reduction over the ranks completes the result.

#include <algorithm>
#include <cmath>
#include <set>

#include "dtensor/rules/named_dims.h"

namespace weft::dtensor {
namespace {

struct Reduction {
  std::set<int64_t> dims;
  bool keepdim;
};

// Returns true for all.dims and any.dims with an empty `dim`, which reduce no
// dim. Other ops with an empty `dim` reduce all dims.
bool keeps_all_dims(const OpCall& call) {
  const auto& overload = call.op.schema().overload_name();
  const auto dim = rules::argument(call, "dim");
  return overload.starts_with("dims") && dim.isIntList() &&
         dim.toIntVector().empty();
}

Reduction read_reduction(const OpCall& call) {
  const int64_t ndim = call.tensors[0].dim();
  Reduction reduction{{}, false};
  if (const int64_t at = rules::argument_position(call, "dim"); at >= 0) {
    const auto dims = call.dims_argument(at, ndim);
    reduction.dims.insert(dims.begin(), dims.end());
  }
  if (const auto keepdim = rules::argument(call, "keepdim"); keepdim.isBool()) {
    reduction.keepdim = keepdim.toBool();
  }
  if (ndim == 0) {
    reduction.dims.clear();
  } else if (reduction.dims.empty() && !keeps_all_dims(call)) {
    for (int64_t d = 0; d < ndim; ++d) {
      reduction.dims.insert(d);
    }
  }
  return reduction;
}

std::vector<OutputMeta> reduced_sizes(const OpCall& call) {
  const auto reduction = read_reduction(call);
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < call.tensors[0].dim(); ++d) {
    if (!reduction.dims.contains(d)) {
      sizes.push_back(call.tensors[0].sizes()[d]);
    } else if (reduction.keepdim) {
      sizes.push_back(1);
    }
  }
  return {
      call.op.schema().returns().size(), rules::contiguous(std::move(sizes))};
}

std::vector<Strategy> keep_others(const OpCall& call, const StrategyContext&) {
  const auto reduction = read_reduction(call);
  std::vector<Strategy> strategies;
  int64_t output = 0;
  for (int64_t d = 0; d < call.tensors[0].dim(); ++d) {
    const bool reduced = reduction.dims.contains(d);
    if (!reduced) {
      strategies.push_back({{Shard(output)}, {Shard(d)}});
    }
    output += !reduced || reduction.keepdim;
  }
  return strategies;
}

bool is_inexact(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

// Adds strategies that shard a reduced dim, for ops that reduce an empty shard
// to the neutral element.
void finish_later(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    Placements outputs) {
  for (const int64_t d : read_reduction(call).dims) {
    strategies.push_back({outputs, {Shard(d)}});
  }
}

// Adds strategies that shard a reduced dim, for ops that reject an empty shard.
void finish_filled_later(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const StrategyContext& context,
    Placements outputs) {
  for (const int64_t d : read_reduction(call).dims) {
    if (rules::fills_all_parts(call.tensors[0].sizes()[d], context)) {
      strategies.push_back({outputs, {Shard(d)}, true});
    }
  }
}

// Returns true if the op converts its input to integers, which rounds each term
// of a Partial sum.
bool rounds(const OpCall& call) {
  const auto dtype = rules::argument(call, "dtype");
  return dtype.isInt() &&
         c10::isIntegralType(dtype.toScalarType(), /*includeBool=*/true) &&
         is_inexact(call.tensors[0].tensor);
}

void carry(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    std::initializer_list<ReduceOp> ops) {
  const auto& input = call.tensors[0].tensor;
  if (rounds(call) || input.scalar_type() == at::kBool) {
    return;
  }
  for (const auto op : ops) {
    if (op != ReduceOp::kAvg || is_inexact(input)) {
      strategies.push_back({{Partial(op)}, {Partial(op)}});
    }
  }
}

std::vector<Strategy> sum(const OpCall& call, const StrategyContext& context) {
  auto strategies = keep_others(call, context);
  finish_later(strategies, call, {Partial()});
  carry(strategies, call, {ReduceOp::kSum, ReduceOp::kAvg});
  return strategies;
}

// Serves ops that sum something that is not linear in the elements, such as a
// count.
std::vector<Strategy> count(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = keep_others(call, context);
  finish_later(strategies, call, {Partial()});
  return strategies;
}

// A mean of means is the mean only if all shards are of one size.
std::vector<Strategy> mean(const OpCall& call, const StrategyContext& context) {
  auto strategies = keep_others(call, context);
  for (const int64_t d : read_reduction(call).dims) {
    const int64_t size = call.tensors[0].sizes()[d];
    if (size > 0 && size % context.all_shards == 0) {
      strategies.push_back({{Partial(ReduceOp::kAvg)}, {Shard(d)}, true});
    }
  }
  carry(strategies, call, {ReduceOp::kSum, ReduceOp::kAvg});
  return strategies;
}

std::vector<Strategy> prod(const OpCall& call, const StrategyContext& context) {
  auto strategies = keep_others(call, context);
  finish_later(strategies, call, {Partial(ReduceOp::kProduct)});
  carry(strategies, call, {ReduceOp::kProduct});
  return strategies;
}

// An empty shard has no max or min, so every rank must have rows.
template <ReduceOp op>
std::vector<Strategy> extremum(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = keep_others(call, context);
  finish_filled_later(strategies, call, context, {Partial(op)});
  strategies.push_back({{Partial(op)}, {Partial(op)}});
  return strategies;
}

std::vector<Strategy> extrema(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = keep_others(call, context);
  finish_filled_later(
      strategies,
      call,
      context,
      {Partial(ReduceOp::kMin), Partial(ReduceOp::kMax)});
  return strategies;
}

// any is the max of bools, and all is their min.
template <ReduceOp op>
std::vector<Strategy> of_bools(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = keep_others(call, context);
  finish_later(strategies, call, {Partial(op)});
  return strategies;
}

double norm_order(const OpCall& call) {
  for (const auto* name : {"ord", "p"}) {
    if (const auto order = rules::argument(call, name); order.isScalar()) {
      return order.toScalar().toDouble();
    }
  }
  return 2;
}

// Norms of other orders than 0, 1 and infinity are not a sum, max or min of the
// shards' norms.
void finish_norm_later(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const StrategyContext& context) {
  const double order = norm_order(call);
  if (order == 0 || order == 1) {
    finish_later(strategies, call, {Partial()});
  } else if (std::isinf(order)) {
    finish_filled_later(
        strategies,
        call,
        context,
        {Partial(order > 0 ? ReduceOp::kMax : ReduceOp::kMin)});
  }
}

std::vector<Strategy> norm(const OpCall& call, const StrategyContext& context) {
  auto strategies = keep_others(call, context);
  finish_norm_later(strategies, call, context);
  return strategies;
}

// dist is the norm of a difference. A dim may be sharded only if no tensor is
// broadcast.
std::vector<Strategy> dist(const OpCall& call, const StrategyContext& context) {
  std::vector<Strategy> strategies;
  if (call.tensors[0].sizes() == call.tensors[1].sizes()) {
    finish_norm_later(strategies, call, context);
    for (auto& strategy : strategies) {
      strategy.inputs.push_back(strategy.inputs[0]);
    }
  }
  return strategies;
}

} // namespace

void add_reduction_rules(RuleTable& table) {
  using enum ReduceOp;
  table.add("sum", {.strategies = sum, .infer = reduced_sizes});
  table.add("mean", {.strategies = mean, .infer = reduced_sizes});
  table.add("prod", {.strategies = prod, .infer = reduced_sizes});
  table.add("amax max", {.strategies = extremum<kMax>, .infer = reduced_sizes});
  table.add("amin min", {.strategies = extremum<kMin>, .infer = reduced_sizes});
  table.add(
      "aminmax _aminmax", {.strategies = extrema, .infer = reduced_sizes});
  table.add(
      "any _is_any_true",
      {.strategies = of_bools<kMax>, .infer = reduced_sizes});
  table.add(
      "all _is_all_true",
      {.strategies = of_bools<kMin>, .infer = reduced_sizes});
  table.add(
      "nansum count_nonzero linalg__powsum",
      {.strategies = count, .infer = reduced_sizes});
  table.add(
      "linalg_vector_norm norm", {.strategies = norm, .infer = reduced_sizes});
  table.add("dist", {.strategies = dist, .infer = rules::one_number});
  table.add(
      "max.dim max.dim_max min.dim min.dim_min argmax argmin var std var_mean "
      "std_mean logsumexp median nanmedian mode kthvalue",
      {.strategies = keep_others, .infer = reduced_sizes});
  // c10d has no collectives for the result, unsigned 64-bit integers.
  table.add("hash_tensor", {});
}

} // namespace weft::dtensor
