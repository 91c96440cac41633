// Rules of losses over classes. Samples may be sharded, classes must be
// replicated, and the sum over the samples may stay Partial. A mean divides by
// the weight of all samples, which no single rank knows. See
// Note [Losses that are means].
#include <ATen/core/Reduction.h>

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/pointwise.h"

namespace weft::dtensor {
namespace {

using rules::tensor_argument;

std::string reduced(const OpCall& call, const std::string& names) {
  return rules::loss_reduction(call) == at::Reduction::None ? names : "+";
}

OutputMeta contiguous_like(const OpCall& call, std::string_view name) {
  return rules::contiguous(tensor_argument(call, name)->sizes().vec());
}

std::vector<OutputMeta> contiguous_self(const OpCall& call) {
  return {contiguous_like(call, "self")};
}

// --- negative log likelihood ------------------------------------------------

struct ClassNames {
  std::string input;
  std::string target;
};

// The input is [C], [N, C] or [N, C, H, W]. The target lacks the class dim, but
// may be [1] for an input [C].
ClassNames class_names(const OpCall& call) {
  switch (tensor_argument(call, "self")->dim()) {
    case 1:
      return {".", tensor_argument(call, "target")->dim() ? "." : ""};
    case 4:
      return {"n.hw", "nhw"};
    default:
      return {"n.", "n"};
  }
}

std::vector<Strategy> nll_loss_forward(
    const OpCall& call,
    const StrategyContext&) {
  if (rules::loss_reduction(call) == at::Reduction::Mean) {
    return {};
  }
  const auto names = class_names(call);
  return rules::cut_named_dims(
      call,
      {{"self", names.input}, {"target", names.target}},
      {reduced(call, names.target), "+"});
}

// For a mean, the kernel divides by its argument total_weight, which is the
// weight of all samples. Samples may therefore be sharded.
std::vector<Strategy> nll_loss_backward(
    const OpCall& call,
    const StrategyContext&) {
  const auto names = class_names(call);
  const bool none = rules::loss_reduction(call) == at::Reduction::None;
  auto strategies = rules::cut_named_dims(
      call,
      {{"grad_output", none ? names.target : ""},
       {"self", names.input},
       {"target", names.target}},
      {names.input});
  rules::add_linear(strategies, call, {"grad_output"});
  return strategies;
}

std::vector<OutputMeta> nll_loss2d_sizes(const OpCall& call) {
  OutputMeta output;
  if (rules::loss_reduction(call) == at::Reduction::None) {
    output = contiguous_like(call, "target");
  }
  return {output, OutputMeta{}};
}

// --- margins ----------------------------------------------------------------

// A reduced loss needs equal shards that are not empty. An empty shard has no
// loss to add, and the average of the shards' means is the mean only if all
// shards have the same size.
void reduce_in_equal_parts(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const StrategyContext& context) {
  if (rules::loss_reduction(call) == at::Reduction::None) {
    return;
  }
  const int64_t samples = tensor_argument(call, "self")->sizes()[0];
  if (samples == 0 || samples % context.all_shards != 0) {
    strategies.clear();
  }
  const bool mean = rules::loss_reduction(call) == at::Reduction::Mean;
  for (auto& strategy : strategies) {
    if (mean) {
      strategy.outputs[0] = Partial(ReduceOp::kAvg);
    }
    strategy.chunked_only = true;
  }
}

// Only an input [N, C] can be sharded, not [C]. The target has one class per
// sample, or several for the multilabel loss.
std::vector<Strategy> margin_loss(
    const OpCall& call,
    const StrategyContext& context) {
  if (tensor_argument(call, "self")->dim() != 2) {
    return {};
  }
  const bool many = tensor_argument(call, "target")->dim() == 2;
  const std::string target = many ? "n." : "n";
  std::vector<std::string> outputs{reduced(call, "n")};
  if (context.outputs.size() == 2) {
    outputs.push_back(target);
  }
  auto strategies = rules::cut_named_dims(
      call, {{"self", "n."}, {"target", target}}, outputs);
  reduce_in_equal_parts(strategies, call, context);
  return strategies;
}

std::vector<Strategy> margin_loss_backward(
    const OpCall& call,
    const StrategyContext&) {
  std::vector<Strategy> strategies;
  if (tensor_argument(call, "self")->dim() == 2 &&
      rules::loss_reduction(call) != at::Reduction::Mean) {
    const bool none = rules::loss_reduction(call) == at::Reduction::None;
    const bool many = tensor_argument(call, "target")->dim() == 2;
    strategies = rules::cut_named_dims(
        call,
        {{"grad_output", none ? "n" : ""},
         {"self", "n."},
         {"target", many ? "n." : "n"},
         {"is_target", "n."}},
        {"n."});
  }
  rules::add_linear(strategies, call, {"grad_output"});
  return strategies;
}

std::vector<OutputMeta> margin_loss_sizes(const OpCall& call) {
  const auto& self = *tensor_argument(call, "self");
  OutputMeta output;
  if (rules::loss_reduction(call) == at::Reduction::None && self.dim() == 2) {
    output = rules::contiguous({self.sizes()[0]});
  }
  std::vector<OutputMeta> outputs{output};
  if (call.op.schema().returns().size() == 2) {
    outputs.push_back(contiguous_like(call, "target"));
  }
  return outputs;
}

} // namespace

void add_class_loss_rules(RuleTable& table) {
  table.add("nll_loss_forward", {.strategies = nll_loss_forward});
  table.add(
      "nll_loss2d_forward",
      {.strategies = nll_loss_forward, .infer = nll_loss2d_sizes});
  table.add("nll_loss_backward", {.strategies = nll_loss_backward});
  table.add(
      "nll_loss2d_backward",
      {.strategies = nll_loss_backward, .infer = contiguous_self});
  table.add(
      "multi_margin_loss multilabel_margin_loss_forward",
      {.strategies = margin_loss, .infer = margin_loss_sizes});
  table.add(
      "multi_margin_loss_backward multilabel_margin_loss_backward",
      {.strategies = margin_loss_backward, .infer = contiguous_self});
  // The size of the working memory depends on the values of the target lengths,
  // so the ops run on full tensors.
  table.add("_ctc_loss _ctc_loss_backward", {});
}

// Rules of losses that compare two tensors element by element, with the
// `reduction` of nn.functional. A kernel above autograd replaces most means.
// See Note [Losses that are means].

namespace {

std::vector<OutputMeta> loss_outputs(const OpCall& call) {
  if (rules::loss_reduction(call) != at::Reduction::None) {
    return {{{}, {}}};
  }
  return broadcast(call);
}

// The average of the shards' means is the mean only if all shards have the same
// size.
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

// For a mean, the kernel divides by the number of its local elements, which is
// too small on a shard, so no dim can be sharded.
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
