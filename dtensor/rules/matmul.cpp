// Matrix products: cut rows of the left, columns of the right, or the inner
// dim of both (the result is then a pending sum); batch dims as they are.

#include "dtensor/rule.h"

namespace weft::dtensor {
namespace {

// [.., m, k] x [.., k, n] with `batch` leading batch dims.
std::vector<Strategy> product(int64_t batch) {
  const int64_t row = batch;
  const int64_t column = batch + 1;
  std::vector<Strategy> strategies{
      {{Shard(row)}, {Shard(row), Replicate()}},
      {{Shard(column)}, {Replicate(), Shard(column)}},
      {{Partial()}, {Shard(column), Shard(row)}},
      {{Partial()}, {Partial(), Replicate()}},
      {{Partial()}, {Replicate(), Partial()}}};
  for (int64_t d = 0; d < batch; ++d) {
    strategies.push_back({{Shard(d)}, {Shard(d), Shard(d)}});
  }
  return strategies;
}

std::vector<Strategy> mm(const OpCall&, const StrategyContext&) {
  return product(0);
}

std::vector<Strategy> bmm(const OpCall&, const StrategyContext&) {
  return product(1);
}

// beta * self + alpha * product: self is broadcast to the output, and has to
// be a pending sum itself where the product is one.
std::vector<Strategy> add_product(
    const OpCall& call,
    const StrategyContext& context) {
  const auto self = call.tensors[0].sizes();
  const auto& out = context.outputs.at(0).sizes;
  const auto ndim = static_cast<int64_t>(out.size());
  std::vector<Strategy> strategies;
  for (auto& strategy : product(ndim - 2)) {
    const auto placement = strategy.outputs[0];
    Placement own = placement;
    if (placement.is_shard()) {
      const int64_t dim =
          placement.tensor_dim() - (ndim - static_cast<int64_t>(self.size()));
      const bool broadcast =
          dim < 0 || (self[dim] == 1 && out[placement.tensor_dim()] != 1);
      own = broadcast ? Replicate() : Shard(dim);
    }
    strategy.inputs.insert(strategy.inputs.begin(), own);
    strategies.push_back(std::move(strategy));
  }
  return strategies;
}

std::vector<Strategy> dot(const OpCall&, const StrategyContext&) {
  return {{{Partial()}, {Shard(0), Shard(0)}}};
}

std::vector<Strategy> mv(const OpCall&, const StrategyContext&) {
  return {
      {{Shard(0)}, {Shard(0), Replicate()}},
      {{Partial()}, {Shard(1), Shard(0)}}};
}

std::vector<OutputMeta> scalar(const OpCall&) {
  return {{}};
}

} // namespace

void add_matmul_rules(RuleTable& table) {
  table.add("mm", {.strategies = mm});
  table.add("bmm", {.strategies = bmm});
  table.add("addmm baddbmm", {.strategies = add_product});
  table.add("dot", {.strategies = dot, .infer = scalar});
  table.add("mv", {.strategies = mv});
}

} // namespace weft::dtensor
