// Ops that reduce or normalise along dims: other dims may be cut freely; where
// the reduction itself is one that ranks can finish later, its dims too.

#include <algorithm>
#include <set>

#include "dtensor/rule.h"

namespace weft::dtensor {
namespace {

struct Reduction {
  std::set<int64_t> dims;
  bool keepdim;
};

// Reads (self, dim?, keepdim?) where the schema has them; all dims if `dim` is
// absent, None or empty.
Reduction read_reduction(const OpCall& call) {
  const int64_t ndim = call.tensors[0].dim();
  Reduction reduction{{}, false};
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "dim") {
      const auto dims = call.dims_argument(i, ndim);
      reduction.dims.insert(dims.begin(), dims.end());
    } else if (arguments[i].name() == "keepdim") {
      reduction.keepdim = call.arguments[i].toBool();
    }
  }
  if (ndim == 0) {
    reduction.dims.clear();
  } else if (reduction.dims.empty()) {
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
  auto strides = row_major_strides(sizes);
  return {
      call.op.schema().returns().size(),
      {std::move(sizes), std::move(strides)}};
}

// Cuts of dims that are not reduced.
std::vector<Strategy> other_dims(const OpCall& call) {
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

std::vector<Strategy> keep_others(const OpCall& call, const StrategyContext&) {
  return other_dims(call);
}

std::vector<Strategy> sum(const OpCall& call, const StrategyContext&) {
  auto strategies = other_dims(call);
  for (const int64_t d : read_reduction(call).dims) {
    strategies.push_back({{Partial()}, {Shard(d)}});
  }
  strategies.push_back({{Partial()}, {Partial()}});
  strategies.push_back({{Partial(ReduceOp::kAvg)}, {Partial(ReduceOp::kAvg)}});
  return strategies;
}

// A mean of means is the mean only if all shards are of one size.
std::vector<Strategy> mean(const OpCall& call, const StrategyContext& context) {
  auto strategies = other_dims(call);
  for (const int64_t d : read_reduction(call).dims) {
    const int64_t size = call.tensors[0].sizes()[d];
    if (size > 0 && size % context.all_shards == 0) {
      strategies.push_back({{Partial(ReduceOp::kAvg)}, {Shard(d)}});
    }
  }
  strategies.push_back({{Partial()}, {Partial()}});
  strategies.push_back({{Partial(ReduceOp::kAvg)}, {Partial(ReduceOp::kAvg)}});
  return strategies;
}

// max, min and product of parts; an empty shard has no max.
template <ReduceOp op>
std::vector<Strategy> extremum(
    const OpCall& call,
    const StrategyContext& context) {
  auto strategies = other_dims(call);
  for (const int64_t d : read_reduction(call).dims) {
    if (call.tensors[0].sizes()[d] % context.all_shards == 0) {
      strategies.push_back({{Partial(op)}, {Shard(d)}});
    }
  }
  strategies.push_back({{Partial(op)}, {Partial(op)}});
  return strategies;
}

// Softmax and the like: same shape, `dim` (or `dims`) whole.
std::vector<Strategy> along_dim(const OpCall& call, const StrategyContext&) {
  const auto& arguments = call.op.schema().arguments();
  std::vector<int64_t> whole;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "dim" || arguments[i].name() == "dims") {
      whole = call.dims_argument(i, call.tensors[0].dim());
    }
  }
  std::vector<Strategy> strategies;
  for (int64_t d = 0; d < call.tensors[0].dim(); ++d) {
    if (std::ranges::find(whole, d) == whole.end()) {
      strategies.push_back(
          {{Shard(d)}, Placements(call.tensors.size(), Shard(d))});
    }
  }
  return strategies;
}

// flip keeps the order of dims of its input.
std::vector<OutputMeta> same_sizes(const OpCall& call) {
  const auto& input = call.tensors[0];
  return {
      {input.sizes().vec(),
       dense_strides(input.sizes(), input.tensor.strides())}};
}

} // namespace

void add_reduction_rules(RuleTable& table) {
  table.add("sum", {.strategies = sum, .infer = reduced_sizes});
  table.add("mean", {.strategies = mean, .infer = reduced_sizes});
  table.add(
      "amax", {.strategies = extremum<ReduceOp::kMax>, .infer = reduced_sizes});
  table.add(
      "amin", {.strategies = extremum<ReduceOp::kMin>, .infer = reduced_sizes});
  table.add(
      "max", {.strategies = extremum<ReduceOp::kMax>, .infer = reduced_sizes});
  table.add(
      "min", {.strategies = extremum<ReduceOp::kMin>, .infer = reduced_sizes});
  table.add(
      "prod",
      {.strategies = extremum<ReduceOp::kProduct>, .infer = reduced_sizes});
  table.add(
      "max.dim min.dim any all argmax argmin var std var_mean std_mean "
      "logsumexp median.dim",
      {.strategies = keep_others, .infer = reduced_sizes});
  table.add(
      "_softmax _log_softmax _softmax_backward_data "
      "_log_softmax_backward_data cumsum cumprod sort.stable sort topk",
      {.strategies = along_dim});
  table.add("flip", {.strategies = along_dim, .infer = same_sizes});
}

} // namespace weft::dtensor
