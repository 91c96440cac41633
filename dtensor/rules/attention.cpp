// Rules of the kernels of scaled dot product attention, forward and backward.
// Each head of each sample is independent, so batch and heads may be sharded. A
// kernel's dropout uses its own random counter, which does not include the
// offset of a shard, so a call with dropout runs on full tensors.

#include "dtensor/rules/named_dims.h"
#include "dtensor/rules/partial.h"
#include "dtensor/rules/rule.h"

namespace weft::dtensor {
namespace {

using rules::NamedDims;

// Query, key and value are [B, H, T, D] in every kernel.
struct Attention {
  const TensorArgument& query;
  const TensorArgument& key;
  const TensorArgument& value;

  explicit Attention(const OpCall& call)
      : query(*rules::tensor_argument(call, "query")),
        key(*rules::tensor_argument(call, "key")),
        value(*rules::tensor_argument(call, "value")) {}

  std::string mask_names(const OpCall& call, const char* argument) const {
    const auto* mask = rules::tensor_argument(call, argument);
    if (!mask) {
      return "";
    }
    const std::vector<int64_t> scores{
        query.sizes()[0], query.sizes()[1], query.sizes()[2], key.sizes()[2]};
    return rules::broadcast_dims(mask->sizes(), scores, "bh..");
  }
};

// Returns "bh", with '.' for a dim that cannot be sharded. If several query
// heads share a key head, each rank needs matching groups of both, so the mesh
// size must divide both counts. No kernel accepts zero heads, and only the
// CPU's accepts an empty batch.
std::string cuttable(
    const OpCall& call,
    const StrategyContext& context,
    const Attention& attention) {
  const bool cpu = call.name().find("for_cpu") != std::string_view::npos;
  const int64_t batch = attention.query.sizes()[0];
  const int64_t of_queries = attention.query.sizes()[1];
  const int64_t of_keys = attention.key.sizes()[1];
  const bool heads = of_queries == of_keys
                         ? rules::never_empty(of_queries, call, context)
                         : rules::divides(of_queries, context) &&
                               rules::divides(of_keys, context);
  const bool samples = cpu || rules::never_empty(batch, call, context);
  return std::string(samples ? "b" : ".") + (heads ? "h" : ".");
}

bool draws(const OpCall& call) {
  return rules::argument(call, "dropout_p").toDouble() != 0;
}

// Uneven shards can be empty, which only the CPU's kernel accepts, and only
// along the batch.
void mark_chunked(std::vector<Strategy>& strategies, const OpCall& call) {
  const bool cpu = call.name().find("for_cpu") != std::string_view::npos;
  for (auto& strategy : strategies) {
    strategy.chunked_only = !cpu || strategy.inputs[0] == Shard(1);
  }
}

std::vector<Strategy> cut_attention(
    const OpCall& call,
    const StrategyContext& context,
    std::vector<std::string> outputs) {
  const Attention attention(call);
  const auto names = cuttable(call, context, attention);
  const auto only_cuttable = [&](std::string text) {
    for (auto& letter : text) {
      if ((letter == 'b' || letter == 'h') &&
          names.find(letter) == std::string::npos) {
        letter = '.';
      }
    }
    return text;
  };
  NamedDims inputs;
  for (const auto* argument :
       {"query", "key", "value", "grad_out", "grad_out_", "out", "logsumexp"}) {
    inputs.emplace_back(argument, names);
  }
  for (const auto* argument : {"attn_mask", "attn_bias"}) {
    inputs.emplace_back(
        argument, only_cuttable(attention.mask_names(call, argument)));
  }
  for (auto& output : outputs) {
    output = only_cuttable(output);
  }
  auto strategies = rules::cut_named_dims(call, inputs, outputs);
  mark_chunked(strategies, call);
  return strategies;
}

// Shards the first two outputs, which are the attention output and the
// logsumexp that backward needs. Only the attention output is linear in the
// values.
std::vector<Strategy> forward(
    const OpCall& call,
    const StrategyContext& context) {
  const auto debug = rules::argument(call, "return_debug_mask");
  if (draws(call) || (debug.isBool() && debug.toBool())) {
    return {};
  }
  std::vector<std::string> outputs(context.outputs.size());
  std::vector<bool> linear(context.outputs.size(), false);
  outputs[0] = outputs[1] = "bh";
  linear[0] = true;
  auto strategies = cut_attention(call, context, outputs);
  rules::add_linear(strategies, call, {"value"}, linear);
  return strategies;
}

std::vector<Strategy> attention_backward(
    const OpCall& call,
    const StrategyContext& context) {
  if (draws(call)) {
    return {};
  }
  std::vector<std::string> outputs(context.outputs.size(), "bh");
  std::vector<bool> linear(context.outputs.size(), true);
  if (outputs.size() == 4) {
    const bool bias = !context.outputs[3].sizes.empty();
    outputs[3] =
        bias ? "+" + Attention(call).mask_names(call, "attn_bias") : "";
    linear[3] = bias;
  }
  auto strategies = cut_attention(call, context, outputs);
  rules::add_linear(strategies, call, {"grad_out", "grad_out_"}, linear);
  return strategies;
}

// --- sizes ------------------------------------------------------------------

// Returns the metadata of a tensor [B, H, T, last] that is [B, T, H, last] in
// memory. `sizes` starts with B, H and T.
OutputMeta heads_inside(c10::IntArrayRef sizes, int64_t last) {
  const int64_t heads = sizes[1];
  const int64_t time = sizes[2];
  return {
      {sizes[0], heads, time, last},
      {time * heads * last, last, heads * last, 1}};
}

OutputMeta ordered_like(const TensorArgument& like, int64_t last) {
  auto sizes = like.sizes().vec();
  sizes.back() = last;
  auto strides = dense_strides(sizes, like.tensor.strides());
  return {std::move(sizes), std::move(strides)};
}

std::vector<OutputMeta> cpu_sizes(const OpCall& call) {
  const Attention attention(call);
  const auto q = attention.query.sizes();
  return {
      ordered_like(attention.query, attention.value.sizes()[3]),
      {{q[0], q[1], q[2]}, {q[2] * q[1], 1, q[1]}}};
}

std::vector<OutputMeta> flash_sizes(const OpCall& call) {
  const Attention attention(call);
  const auto q = attention.query.sizes();
  return {
      ordered_like(attention.query, attention.value.sizes()[3]),
      rules::contiguous({q[0], q[1], q[2]}),
      {},
      {},
      rules::contiguous({2}),
      {},
      rules::contiguous({0})};
}

std::vector<OutputMeta> cudnn_sizes(const OpCall& call) {
  const Attention attention(call);
  const auto q = attention.query.sizes();
  return {
      ordered_like(attention.query, attention.value.sizes()[3]),
      rules::contiguous({q[0], q[1], q[2], 1}),
      {},
      {},
      {},
      {},
      {}};
}

// The kernel pads each row of the logsumexp to a multiple of 32 elements.
std::vector<OutputMeta> efficient_sizes(const OpCall& call) {
  const Attention attention(call);
  const auto q = attention.query.sizes();
  const bool saved = rules::argument(call, "compute_log_sumexp").toBool();
  return {
      heads_inside(q, attention.value.sizes()[3]),
      rules::contiguous({q[0], q[1], saved ? (q[2] + 31) / 32 * 32 : 0}),
      {},
      {}};
}

std::vector<OutputMeta> heads_inside_gradients(const OpCall& call) {
  const Attention attention(call);
  std::vector<OutputMeta> metas;
  for (const auto* input :
       {&attention.query, &attention.key, &attention.value}) {
    metas.push_back(heads_inside(input->sizes(), input->sizes()[3]));
  }
  return metas;
}

std::vector<OutputMeta> gradients_like(const OpCall& call) {
  const Attention attention(call);
  return {
      rules::like(attention.query),
      rules::like(attention.key),
      rules::like(attention.value)};
}

std::vector<OutputMeta> efficient_gradients(const OpCall& call) {
  auto metas = heads_inside_gradients(call);
  const auto* bias = rules::tensor_argument(call, "attn_bias");
  const auto mask = rules::argument(call, "grad_input_mask").toBoolList();
  metas.push_back(bias && mask.get(3) ? rules::like(*bias) : OutputMeta());
  return metas;
}

} // namespace

void add_attention_rules(RuleTable& table) {
  table.add(
      "_scaled_dot_product_flash_attention_for_cpu",
      {.strategies = forward, .infer = cpu_sizes});
  table.add(
      "_scaled_dot_product_flash_attention_for_cpu_backward",
      {.strategies = attention_backward, .infer = heads_inside_gradients});
  table.add(
      "_scaled_dot_product_flash_attention",
      {.strategies = forward, .infer = flash_sizes});
  table.add(
      "_scaled_dot_product_flash_attention_backward",
      {.strategies = attention_backward, .infer = gradients_like});
  table.add(
      "_scaled_dot_product_cudnn_attention",
      {.strategies = forward, .infer = cudnn_sizes});
  table.add(
      "_scaled_dot_product_cudnn_attention_backward",
      {.strategies = attention_backward, .infer = gradients_like});
  table.add(
      "_scaled_dot_product_efficient_attention",
      {.strategies = forward, .infer = efficient_sizes});
  table.add(
      "_scaled_dot_product_efficient_attention_backward",
      {.strategies = attention_backward, .infer = efficient_gradients});
}

} // namespace weft::dtensor
