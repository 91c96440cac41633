// Joining, picking and placing along dims: the dims that are not indexed may
// be cut.

#include <algorithm>

#include "dtensor/rule.h"

namespace weft::dtensor {
namespace {

std::vector<Strategy> cat(const OpCall& call, const StrategyContext& context) {
  const auto ndim = static_cast<int64_t>(context.outputs.at(0).sizes.size());
  const int64_t joined = call.dim_argument(1, ndim);
  std::vector<Strategy> strategies;
  const bool same_ndim = std::ranges::all_of(
      call.tensors, [&](const auto& t) { return t.dim() == ndim; });
  for (int64_t d = 0; same_ndim && d < ndim; ++d) {
    if (d != joined) {
      strategies.push_back(
          {{Shard(d)}, Placements(call.tensors.size(), Shard(d))});
    }
  }
  strategies.push_back(
      {{Partial()}, Placements(call.tensors.size(), Partial())});
  return strategies;
}

std::vector<Strategy> stack(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors.at(0).dim();
  const int64_t inserted = call.dim_argument(1, ndim + 1);
  std::vector<Strategy> strategies;
  for (int64_t d = 0; d < ndim; ++d) {
    strategies.push_back(
        {{Shard(d >= inserted ? d + 1 : d)},
         Placements(call.tensors.size(), Shard(d))});
  }
  strategies.push_back(
      {{Partial()}, Placements(call.tensors.size(), Partial())});
  return strategies;
}

// index_select(self, dim, index): the index is whole.
std::vector<Strategy> index_select(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  const int64_t indexed = call.dim_argument(1, ndim);
  std::vector<Strategy> strategies;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != indexed) {
      strategies.push_back({{Shard(d)}, {Shard(d), Replicate()}});
    }
  }
  return strategies;
}

// gather and scatter: self, index and source are cut together along a dim in
// which all are of one size.
std::vector<Strategy> gather_like(const OpCall& call, const StrategyContext&) {
  const int64_t ndim = call.tensors[0].dim();
  const int64_t indexed = call.dim_argument(1, ndim);
  std::vector<Strategy> strategies;
  for (int64_t d = 0; d < ndim; ++d) {
    const bool equal = std::ranges::all_of(call.tensors, [&](const auto& t) {
      return t.dim() == ndim && t.sizes()[d] == call.tensors[0].sizes()[d];
    });
    if (d != indexed && equal) {
      strategies.push_back(
          {{Shard(d)}, Placements(call.tensors.size(), Shard(d))});
    }
  }
  return strategies;
}

// tril and triu look at the last two dims.
std::vector<Strategy> batch_dims(const OpCall& call, const StrategyContext&) {
  std::vector<Strategy> strategies;
  for (int64_t d = 0; d < call.tensors[0].dim() - 2; ++d) {
    strategies.push_back({{Shard(d)}, {Shard(d)}});
  }
  strategies.push_back({{Partial()}, {Partial()}});
  return strategies;
}

std::vector<Strategy> none(const OpCall&, const StrategyContext&) {
  return {};
}

std::vector<OutputMeta> index_select_sizes(const OpCall& call) {
  auto sizes = call.tensors[0].sizes().vec();
  if (!sizes.empty()) {
    sizes[call.dim_argument(1, static_cast<int64_t>(sizes.size()))] =
        call.tensors[1].tensor.numel();
  }
  auto strides = row_major_strides(sizes);
  return {{std::move(sizes), std::move(strides)}};
}

} // namespace

void add_indexing_rules(RuleTable& table) {
  table.add("cat", {.strategies = cat});
  table.add("stack", {.strategies = stack});
  table.add(
      "index_select",
      {.strategies = index_select, .infer = index_select_sizes});
  table.add("gather scatter scatter_add", {.strategies = gather_like});
  table.add("tril triu", {.strategies = batch_dims});
  table.add("index.Tensor", {.strategies = none});
}

} // namespace weft::dtensor
