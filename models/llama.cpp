// Shape suffixes are explained in llama.h.

#include "models/llama.h"

#include "dtensor/fused/fused_ops.h"
#include "dtensor/scopes/module_call.h"

namespace weft::models {
namespace {

constexpr double kInitStd = 0.02;

torch::nn::Linear linear(int64_t in, int64_t out) {
  torch::nn::Linear layer(torch::nn::LinearOptions(in, out).bias(false));
  torch::nn::init::normal_(layer->weight, 0.0, kInitStd);
  return layer;
}

at::Tensor rotate(const at::Tensor& x_BHTd, const RotaryTables& rotary) {
  // Under autocast, the outputs of matmuls have another dtype than embeddings.
  const auto dtype = x_BHTd.scalar_type();
  return dtensor::rotary_embedding(
      x_BHTd, rotary.cos_Td.to(dtype), rotary.sin_Td.to(dtype));
}

} // namespace

RMSNormImpl::RMSNormImpl(int64_t dim, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::ones({dim}));
}

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  return torch::rms_norm(x, weight.sizes(), weight, eps_);
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim()),
      dropout_(config.attention_dropout) {
  const int64_t kv_dim = kv_heads_ * head_dim_;
  q_proj = register_module("q_proj", linear(config.dim, config.dim));
  k_proj = register_module("k_proj", linear(config.dim, kv_dim));
  v_proj = register_module("v_proj", linear(config.dim, kv_dim));
  o_proj = register_module("o_proj", linear(config.dim, config.dim));
}

at::Tensor LlamaAttentionImpl::forward(
    const at::Tensor& x,
    const RotaryTables& rotary,
    LayerCache* cache) {
  const int64_t B = x.size(0);
  const int64_t T = x.size(1);
  const auto split = [&](const at::Tensor& y, int64_t heads) {
    return y.view({B, T, heads, head_dim_}).transpose(1, 2);
  };
  const auto q_BHTd = rotate(split(q_proj(x), heads_), rotary);
  const auto k_BKTd = rotate(split(k_proj(x), kv_heads_), rotary);
  const auto v_BKTd = split(v_proj(x), kv_heads_);
  const auto y_BHTd = causal_attention(
      q_BHTd, k_BKTd, v_BKTd, is_training() ? dropout_ : 0.0, cache);
  return o_proj(y_BHTd.transpose(1, 2).reshape({B, T, heads_ * head_dim_}));
}

LlamaMLPImpl::LlamaMLPImpl(const LlamaConfig& config) {
  gate_proj = register_module("gate_proj", linear(config.dim, config.ffn_dim));
  up_proj = register_module("up_proj", linear(config.dim, config.ffn_dim));
  down_proj = register_module("down_proj", linear(config.ffn_dim, config.dim));
}

at::Tensor LlamaMLPImpl::forward(const at::Tensor& x) {
  const auto gate = gate_proj(x);
  const auto up = up_proj(x);
  return down_proj(dtensor::swiglu(gate, up));
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(
    const LlamaConfig& config,
    std::shared_ptr<FeedForward> feed_forward) {
  self_attn = register_module("self_attn", LlamaAttention(config));
  mlp = register_module("mlp", std::move(feed_forward));
  input_layernorm =
      register_module("input_layernorm", RMSNorm(config.dim, config.norm_eps));
  post_attention_layernorm = register_module(
      "post_attention_layernorm", RMSNorm(config.dim, config.norm_eps));
}

at::Tensor LlamaDecoderLayerImpl::forward(
    const at::Tensor& x,
    const RotaryTables& rotary,
    LayerCache* cache) {
  const auto h =
      x + dtensor::call(self_attn, input_layernorm(x), rotary, cache);
  return h + dtensor::call(mlp, post_attention_layernorm(h));
}

LlamaModelImpl::LlamaModelImpl(
    const LlamaConfig& config,
    const MakeFeedForward& make_feed_forward) {
  embed_tokens = register_module(
      "embed_tokens", torch::nn::Embedding(config.vocab_size, config.dim));
  torch::nn::init::normal_(embed_tokens->weight, 0.0, kInitStd);
  for (int64_t i = 0; i < config.layers; ++i) {
    layers->push_back(LlamaDecoderLayer(config, make_feed_forward()));
  }
  register_module("layers", layers);
  norm = register_module("norm", RMSNorm(config.dim, config.norm_eps));
  rotary_ = rotary_tables(
      rotary_frequencies(
          config.head_dim(), config.rope_theta, config.rope_scaling),
      config.max_sequence_length);
  register_buffer("rotary_cos", rotary_.cos_Td);
  register_buffer("rotary_sin", rotary_.sin_Td);
}

at::Tensor LlamaModelImpl::forward(const at::Tensor& tokens, KvCache* cache) {
  const int64_t T = tokens.size(1);
  const int64_t seen = cache == nullptr ? 0 : cache->length();
  const auto tables = named_buffers(/*recurse=*/false);
  auto x = embed_tokens(tokens);
  // If the parameters are cast for computing, the dtype of x differs from that
  // of the tables.
  const RotaryTables rotary{
      tables["rotary_cos"].narrow(0, seen, T).to(x.scalar_type()),
      tables["rotary_sin"].narrow(0, seen, T).to(x.scalar_type())};
  for (size_t i = 0; i < layers->size(); ++i) {
    const auto block = layers->ptr<LlamaDecoderLayerImpl>(i);
    x = dtensor::call(
        block, x, rotary, cache == nullptr ? nullptr : &cache->layer(i));
  }
  return norm(x);
}

LlamaForCausalLMImpl::LlamaForCausalLMImpl(const LlamaConfig& config)
    : LlamaForCausalLMImpl(config, [&] {
        return std::make_shared<LlamaMLPImpl>(config);
      }) {}

LlamaForCausalLMImpl::LlamaForCausalLMImpl(
    const LlamaConfig& config,
    const MakeFeedForward& make_feed_forward) {
  model = register_module("model", LlamaModel(config, make_feed_forward));
  if (!config.tie_embeddings) {
    lm_head = register_module("lm_head", linear(config.dim, config.vocab_size));
  }
}

std::set<std::string> LlamaForCausalLMImpl::computed_buffers() const {
  return {"model.rotary_cos", "model.rotary_sin"};
}

at::Tensor LlamaForCausalLMImpl::logits_of(const at::Tensor& x) {
  // DTensors treat at::linear as one op. nn::functional's linear would
  // decompose it into a matmul with the transposed weight.
  return lm_head ? lm_head(x) : at::linear(x, model->embed_tokens->weight);
}

at::Tensor LlamaForCausalLMImpl::forward(const at::Tensor& tokens) {
  KvCache* const no_cache = nullptr;
  return logits_of(dtensor::call(model, tokens, no_cache));
}

at::Tensor LlamaForCausalLMImpl::forward_cached(
    const at::Tensor& tokens,
    KvCache& cache) {
  const auto x = dtensor::call(model, tokens, &cache);
  return logits_of(x.narrow(1, x.size(1) - 1, 1));
}

} // namespace weft::models
