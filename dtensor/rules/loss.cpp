// Losses that compare element by element, and reduce or do not: what
// nn.functional's `reduction` says. Means go another way where they can: see
// Note [Losses that are means].

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/pointwise.h"

#include <ATen/core/Reduction.h>

namespace weft::dtensor {
namespace {

std::vector<OutputMeta> loss_outputs(const OpCall& call) {
  if (rules::loss_reduction(call) != at::Reduction::None) {
    return {{{}, {}}};
  }
  return broadcast(call);
}

// A mean of means is the mean only of parts of one size.
std::vector<Strategy> mean_strategies(
    const OpCall& call,
    c10::IntArrayRef sizes,
    const StrategyContext& context) {
  std::vector<Strategy> strategies;
  for (auto& strategy : shard_broadcast_dims(
           call, sizes, [](int64_t dim) { return Placements{Shard(dim)}; })) {
    const int64_t size = sizes[strategy.outputs[0].tensor_dim()];
    if (size > 0 && size % context.all_shards == 0) {
      strategy.outputs = {Partial(ReduceOp::kAvg)};
      strategy.chunked_only = true;
      strategies.push_back(std::move(strategy));
    }
  }
  return strategies;
}

std::vector<Strategy> loss(const OpCall& call, const StrategyContext& context) {
  const auto sizes = broadcast(call)[0].sizes;
  if (rules::loss_reduction(call) == at::Reduction::Mean) {
    return mean_strategies(call, sizes, context);
  }
  const bool sums = rules::loss_reduction(call) == at::Reduction::Sum;
  return shard_broadcast_dims(call, sizes, [&](int64_t dim) {
    return Placements{sums ? Partial() : Shard(dim)};
  });
}

// Divides by the number of elements of what it gets: a part has fewer.
std::vector<Strategy> loss_backward(
    const OpCall& call,
    const StrategyContext& context) {
  std::vector<Strategy> strategies;
  if (rules::loss_reduction(call) != at::Reduction::Mean) {
    strategies = shard_any_dim(call, context);
  }
  append_carries(strategies, call, linear({0}));
  return strategies;
}

} // namespace

void add_loss_rules(RuleTable& table) {
  table.add(
      "binary_cross_entropy binary_cross_entropy_with_logits huber_loss "
      "mse_loss smooth_l1_loss soft_margin_loss",
      {.strategies = loss, .infer = loss_outputs});
  table.add(
      "binary_cross_entropy_backward huber_loss_backward mse_loss_backward "
      "smooth_l1_loss_backward soft_margin_loss_backward",
      {.strategies = loss_backward, .infer = broadcast});
}

} // namespace weft::dtensor
