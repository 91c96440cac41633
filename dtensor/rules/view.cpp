// Ops that show the same elements under another shape: a shard follows its dim.

#include <algorithm>
#include <limits>

#include "dtensor/rule.h"

namespace weft::dtensor {
namespace {

struct DimPair {
  int64_t input;
  int64_t output;
};

// A shard moves along each pair; any pending reduction waits.
std::vector<Strategy> follow(const std::vector<DimPair>& pairs) {
  std::vector<Strategy> strategies;
  for (const auto& [input, output] : pairs) {
    strategies.push_back({{Shard(output)}, {Shard(input)}});
  }
  for (const auto op :
       {ReduceOp::kSum,
        ReduceOp::kAvg,
        ReduceOp::kMin,
        ReduceOp::kMax,
        ReduceOp::kProduct}) {
    strategies.push_back({{Partial(op)}, {Partial(op)}});
  }
  return strategies;
}

using Pairs = std::vector<DimPair> (*)(const OpCall&, const StrategyContext&);

template <Pairs pairs>
std::vector<Strategy> by_pairs(
    const OpCall& call,
    const StrategyContext& context) {
  return follow(pairs(call, context));
}

std::vector<DimPair> same_dims(const OpCall& call, const StrategyContext&) {
  std::vector<DimPair> pairs;
  for (int64_t d = 0; d < call.tensors[0].dim(); ++d) {
    pairs.push_back({d, d});
  }
  return pairs;
}

// The first dim of more than one row in [begin, end), or -1.
int64_t leading(c10::IntArrayRef sizes, size_t begin, size_t end) {
  for (size_t d = begin; d < end; ++d) {
    if (sizes[d] != 1) {
      return static_cast<int64_t>(d);
    }
  }
  return -1;
}

// Walks both shapes and pairs the leading dims of runs with equal products
// ([B, T, H*D] and [B, T, H, D]: B-B, T-T, H*D-H). Where a run has several
// dims, cutting its leading dim cuts the run in equal parts only if the
// number of shards divides both leading dims.
std::vector<DimPair> reshape_pairs(
    const OpCall& call,
    const StrategyContext& context) {
  const auto in = call.tensors[0].sizes();
  const c10::IntArrayRef out = context.outputs.at(0).sizes;
  std::vector<DimPair> pairs;
  if (call.tensors[0].tensor.numel() == 0) {
    return pairs;
  }
  size_t i = 0;
  size_t j = 0;
  while (i < in.size() && j < out.size()) {
    const size_t i0 = i;
    const size_t j0 = j;
    int64_t left = in[i++];
    int64_t right = out[j++];
    while (left != right) {
      if (left < right) {
        left *= in[i++];
      } else {
        right *= out[j++];
      }
    }
    const int64_t a = leading(in, i0, i);
    const int64_t b = leading(out, j0, j);
    if (a < 0 || b < 0) {
      continue;
    }
    const bool aligned =
        in[a] % context.all_shards == 0 && out[b] % context.all_shards == 0;
    if (in[a] == out[b] || aligned) {
      pairs.push_back({a, b});
    }
  }
  return pairs;
}

std::vector<DimPair> transpose_pairs(
    const OpCall& call,
    const StrategyContext& context) {
  const int64_t ndim = call.tensors[0].dim();
  const bool is_t = call.arguments.size() == 1;
  if (is_t && ndim < 2) {
    return same_dims(call, context);
  }
  const int64_t a = is_t ? 0 : call.dim_argument(1, ndim);
  const int64_t b = is_t ? 1 : call.dim_argument(2, ndim);
  std::vector<DimPair> pairs;
  for (int64_t d = 0; d < ndim; ++d) {
    pairs.push_back({d, d == a ? b : d == b ? a : d});
  }
  return pairs;
}

std::vector<DimPair> permute_pairs(const OpCall& call, const StrategyContext&) {
  const auto order = call.dims_argument(1, call.tensors[0].dim());
  std::vector<DimPair> pairs;
  for (size_t d = 0; d < order.size(); ++d) {
    pairs.push_back({order[d], static_cast<int64_t>(d)});
  }
  return pairs;
}

std::vector<DimPair> expand_pairs(
    const OpCall& call,
    const StrategyContext& context) {
  const auto in = call.tensors[0].sizes();
  const auto& out = context.outputs.at(0).sizes;
  std::vector<DimPair> pairs;
  for (size_t d = 0; d < in.size(); ++d) {
    const size_t o = d + out.size() - in.size();
    if (in[d] == out[o]) {
      pairs.push_back({static_cast<int64_t>(d), static_cast<int64_t>(o)});
    }
  }
  return pairs;
}

std::vector<DimPair> unsqueeze_pairs(
    const OpCall& call,
    const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  const int64_t inserted = call.dim_argument(1, ndim + 1);
  std::vector<DimPair> pairs;
  for (int64_t d = 0; d < ndim; ++d) {
    pairs.push_back({d, d >= inserted ? d + 1 : d});
  }
  return pairs;
}

std::vector<DimPair> squeeze_pairs(const OpCall& call, const StrategyContext&) {
  const auto sizes = call.tensors[0].sizes();
  const auto dims = call.dims_argument(1, static_cast<int64_t>(sizes.size()));
  std::vector<DimPair> pairs;
  int64_t output = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    const bool named = std::ranges::find(dims, d) != dims.end();
    if (sizes[d] != 1) {
      pairs.push_back({d, output});
    }
    output += !(named && sizes[d] == 1);
  }
  return pairs;
}

// A local size may be 1 where the global one is not: only the dims that go
// globally are named to the local op.
std::vector<std::pair<size_t, c10::IValue>> squeezed_dims(
    const OpCall& call,
    const std::vector<std::vector<int64_t>>&) {
  const auto sizes = call.tensors[0].sizes();
  std::vector<int64_t> dims;
  for (const int64_t d : call.dims_argument(1, call.tensors[0].dim())) {
    if (!sizes.empty() && sizes[d] == 1) {
      dims.push_back(d);
    }
  }
  return {{1, dims}};
}

// select and unbind take `dim` away; every other one may be cut.
std::vector<DimPair> remove_dim(const OpCall& call, int64_t removed) {
  std::vector<DimPair> pairs;
  for (int64_t d = 0; d < call.tensors[0].dim(); ++d) {
    if (d != removed) {
      pairs.push_back({d, d > removed ? d - 1 : d});
    }
  }
  return pairs;
}

std::vector<DimPair> select_pairs(const OpCall& call, const StrategyContext&) {
  return remove_dim(call, call.dim_argument(1, call.tensors[0].dim()));
}

std::vector<DimPair> except_dim(const OpCall& call, int64_t except) {
  std::vector<DimPair> pairs;
  for (int64_t d = 0; d < call.tensors[0].dim(); ++d) {
    if (d != except) {
      pairs.push_back({d, d});
    }
  }
  return pairs;
}

std::vector<Strategy> all_but_last(const OpCall& call, const StrategyContext&) {
  std::vector<Strategy> strategies;
  for (int64_t d = 0; d + 1 < call.tensors[0].dim(); ++d) {
    strategies.push_back({{Shard(d)}, {Shard(d)}});
  }
  return strategies;
}

std::vector<DimPair> slice_pairs(
    const OpCall& call,
    const StrategyContext& context) {
  const int64_t dim = call.dim_argument(1, call.tensors[0].dim());
  const bool whole =
      call.tensors[0].sizes()[dim] == context.outputs.at(0).sizes[dim];
  return except_dim(call, whole ? -1 : dim);
}

std::vector<DimPair> split_pairs(const OpCall& call, const StrategyContext&) {
  return except_dim(call, call.dim_argument(2, call.tensors[0].dim()));
}

std::vector<std::pair<size_t, c10::IValue>> local_sizes(
    const OpCall&,
    const std::vector<std::vector<int64_t>>& outputs) {
  return {{1, outputs.at(0)}};
}

// What goes back through select and slice: zeros around the gradient.
std::vector<DimPair> select_backward_pairs(
    const OpCall& call,
    const StrategyContext& context) {
  const auto ndim = static_cast<int64_t>(context.outputs.at(0).sizes.size());
  const int64_t selected = call.dim_argument(2, ndim);
  std::vector<DimPair> pairs;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != selected) {
      pairs.push_back({d > selected ? d - 1 : d, d});
    }
  }
  return pairs;
}

std::vector<DimPair> slice_backward_pairs(
    const OpCall& call,
    const StrategyContext&) {
  return except_dim(call, call.dim_argument(2, call.tensors[0].dim()));
}

} // namespace

void add_view_rules(RuleTable& table) {
  table.add(
      "view _unsafe_view",
      {.strategies = by_pairs<reshape_pairs>,
       .localize = local_sizes,
       .view = true,
       .reshapes = true});
  // The same bytes as another dtype: the last dim changes its size.
  table.add("view.dtype", {.strategies = all_but_last, .view = true});
  table.add(
      "expand",
      {.strategies = by_pairs<expand_pairs>,
       .localize = local_sizes,
       .view = true});
  table.add(
      "transpose t", {.strategies = by_pairs<transpose_pairs>, .view = true});
  table.add("permute", {.strategies = by_pairs<permute_pairs>, .view = true});
  table.add(
      "unsqueeze", {.strategies = by_pairs<unsqueeze_pairs>, .view = true});
  table.add(
      "squeeze.dims",
      {.strategies = by_pairs<squeeze_pairs>,
       .localize = squeezed_dims,
       .view = true});
  table.add(
      "select.int unbind",
      {.strategies = by_pairs<select_pairs>, .view = true});
  table.add(
      "slice.Tensor", {.strategies = by_pairs<slice_pairs>, .view = true});
  table.add(
      "select_backward",
      {.strategies = by_pairs<select_backward_pairs>, .localize = local_sizes});
  table.add(
      "slice_backward",
      {.strategies = by_pairs<slice_backward_pairs>, .localize = local_sizes});
  table.add(
      "split split_with_sizes",
      {.strategies = by_pairs<split_pairs>, .view = true});
  table.add(
      "alias detach lift_fresh lift_fresh_copy",
      {.strategies = by_pairs<same_dims>, .view = true});
}

} // namespace weft::dtensor
