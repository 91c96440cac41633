// Rules of row lookups in a table. The table's columns and the indices may be
// sharded. A table with sharded rows is handled by the kernel above autograd,
// which knows the rows of each rank.

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

std::string index_names(const OpCall& call) {
  return rules::all_dims(rules::tensor_argument(call, "indices")->dim());
}

std::vector<Strategy> embedding(const OpCall& call, const StrategyContext&) {
  const auto indices = index_names(call);
  auto strategies = rules::cut_named_dims(
      call, {{"weight", ".z"}, {"indices", indices}}, {indices + "z"});
  rules::add_pending(strategies, call, rules::every_reduction(), {"weight"});
  return strategies;
}

std::vector<OutputMeta> embedding_sizes(const OpCall& call) {
  auto sizes = call.tensors[1].sizes().vec();
  sizes.push_back(call.tensors[0].sizes()[1]);
  return {rules::contiguous(std::move(sizes))};
}

// Each rank sums the gradients of its own indices. With scale_grad_by_freq the
// indices must be replicated, because a rank cannot count how often an index
// occurs on other ranks.
std::vector<Strategy> embedding_backward(
    const OpCall& call,
    const StrategyContext&) {
  const auto indices = index_names(call);
  const bool counts = rules::argument(call, "scale_grad_by_freq").toBool();
  auto strategies = rules::cut_named_dims(
      call,
      {{"grad_output",
        (counts ? std::string(indices.size(), '.') : indices) + "z"},
       {"indices", counts ? "" : indices}},
      {"+.z"});
  rules::add_linear(strategies, call, {"grad_output"});
  return strategies;
}

std::vector<OutputMeta> embedding_backward_sizes(const OpCall& call) {
  return {rules::contiguous(
      {rules::argument(call, "num_weights").toInt(),
       call.tensors[0].sizes().back()})};
}

// The gradient of a bag's weights is a sum over the columns.
std::vector<Strategy> bag_weights_backward(
    const OpCall& call,
    const StrategyContext&) {
  auto strategies =
      rules::cut_named_dims(call, {{"grad", ".z"}, {"weight", ".z"}}, {"+."});
  rules::add_linear(strategies, call, {"grad"});
  rules::add_linear(strategies, call, {"weight"});
  return strategies;
}

std::vector<OutputMeta> bag_weights_sizes(const OpCall& call) {
  return {rules::contiguous(
      {rules::tensor_argument(call, "indices")->tensor.numel()})};
}

// The columns of the bags may be sharded. Only the mode max fills
// maximum_indices, which then has the row of each column's maximum.
std::vector<Strategy> bag_backward(const OpCall& call, const StrategyContext&) {
  constexpr int64_t kMax = 2;
  const bool largest = rules::argument(call, "mode").toInt() == kMax;
  auto strategies = rules::cut_named_dims(
      call, {{"grad", ".z"}, {"maximum_indices", largest ? ".z" : ""}}, {".z"});
  rules::add_linear(strategies, call, {"grad"});
  return strategies;
}

std::vector<OutputMeta> bag_backward_sizes(const OpCall& call) {
  return {rules::contiguous(
      {rules::argument(call, "num_weights").toInt(),
       call.tensors[0].sizes()[1]})};
}

} // namespace

void add_embedding_rules(RuleTable& table) {
  table.add("embedding", {.strategies = embedding, .infer = embedding_sizes});
  table.add(
      "embedding_dense_backward",
      {.strategies = embedding_backward, .infer = embedding_backward_sizes});
  table.add(
      "_embedding_bag_per_sample_weights_backward",
      {.strategies = bag_weights_backward, .infer = bag_weights_sizes});
  table.add(
      "_embedding_bag_dense_backward",
      {.strategies = bag_backward, .infer = bag_backward_sizes});
  table.add(
      "embedding_renorm _embedding_bag _embedding_bag_forward_only "
      "_embedding_bag_backward",
      {});
}

} // namespace weft::dtensor
