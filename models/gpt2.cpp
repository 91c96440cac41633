// Shape suffixes are explained in llama.h.

#include "models/gpt2.h"

#include <cmath>

#include "dtensor/scopes/module_call.h"
#include "models/layers.h"

namespace weft::models {
namespace {

constexpr double kGpt2InitStd = 0.02;

torch::nn::LayerNorm gpt2_norm(const Gpt2Config& config) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({config.dim}).eps(config.norm_eps));
}

// Returns the init std of the layers that add to the residual stream. Their sum
// then has the variance of a single layer.
double residual_std(const Gpt2Config& config) {
  return kGpt2InitStd / std::sqrt(2.0 * static_cast<double>(config.layers));
}

torch::nn::Embedding gpt2_embedding(int64_t count, int64_t dim) {
  torch::nn::Embedding embedding(count, dim);
  torch::nn::init::normal_(embedding->weight, 0.0, kGpt2InitStd);
  return embedding;
}

} // namespace

Gpt2AttentionImpl::Gpt2AttentionImpl(const Gpt2Config& config)
    : heads_(config.heads),
      attention_dropout_(config.attention_dropout),
      dropout_(config.dropout) {
  const int64_t D = config.dim;
  q_proj = register_module("q_proj", linear_with_bias(D, D));
  k_proj = register_module("k_proj", linear_with_bias(D, D));
  v_proj = register_module("v_proj", linear_with_bias(D, D));
  c_proj =
      register_module("c_proj", linear_with_bias(D, D, residual_std(config)));
}

at::Tensor Gpt2AttentionImpl::forward(const at::Tensor& x, LayerCache* cache) {
  const auto q_BHTd = split_heads(q_proj(x), heads_);
  const auto k_BHTd = split_heads(k_proj(x), heads_);
  const auto v_BHTd = split_heads(v_proj(x), heads_);
  const auto y_BTD = merge_heads(causal_attention(
      q_BHTd, k_BHTd, v_BHTd, is_training() ? attention_dropout_ : 0.0, cache));
  return torch::dropout(c_proj(y_BTD), dropout_, is_training());
}

Gpt2MLPImpl::Gpt2MLPImpl(const Gpt2Config& config) : dropout_(config.dropout) {
  c_fc = register_module("c_fc", linear_with_bias(config.dim, config.ffn_dim));
  c_proj = register_module(
      "c_proj",
      linear_with_bias(config.ffn_dim, config.dim, residual_std(config)));
}

at::Tensor Gpt2MLPImpl::forward(const at::Tensor& x) {
  const auto y = c_proj(torch::gelu(c_fc(x), "tanh"));
  return torch::dropout(y, dropout_, is_training());
}

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Config& config) {
  ln_1 = register_module("ln_1", gpt2_norm(config));
  attn = register_module("attn", Gpt2Attention(config));
  ln_2 = register_module("ln_2", gpt2_norm(config));
  mlp = register_module("mlp", Gpt2MLP(config));
}

at::Tensor Gpt2BlockImpl::forward(const at::Tensor& x, LayerCache* cache) {
  const auto y = x + dtensor::call(attn, ln_1(x), cache);
  return y + dtensor::call(mlp, ln_2(y));
}

Gpt2ModelImpl::Gpt2ModelImpl(const Gpt2Config& config)
    : dropout_(config.dropout) {
  wte = register_module("wte", gpt2_embedding(config.vocab_size, config.dim));
  wpe = register_module(
      "wpe", gpt2_embedding(config.max_position_embeddings, config.dim));
  for (int64_t i = 0; i < config.layers; ++i) {
    h->push_back(Gpt2Block(config));
  }
  register_module("h", h);
  ln_f = register_module("ln_f", gpt2_norm(config));
}

at::Tensor Gpt2ModelImpl::forward(const at::Tensor& tokens, KvCache* cache) {
  const int64_t seen = cache == nullptr ? 0 : cache->length();
  // Takes T consecutive rows instead of looking up position numbers.
  const auto positions_TD = wpe->weight.narrow(0, seen, tokens.size(1));
  auto x = torch::dropout(wte(tokens) + positions_TD, dropout_, is_training());
  for (size_t i = 0; i < h->size(); ++i) {
    x = dtensor::call(
        h->ptr<Gpt2BlockImpl>(i),
        x,
        cache == nullptr ? nullptr : &cache->layer(i));
  }
  return ln_f(x);
}

Gpt2LMHeadModelImpl::Gpt2LMHeadModelImpl(const Gpt2Config& config) {
  transformer = register_module("transformer", Gpt2Model(config));
}

at::Tensor Gpt2LMHeadModelImpl::forward(const at::Tensor& tokens) {
  KvCache* const no_cache = nullptr;
  const auto x = dtensor::call(transformer, tokens, no_cache);
  // See LlamaForCausalLMImpl::logits_of() for the reason to call at::linear.
  return at::linear(x, transformer->wte->weight);
}

at::Tensor Gpt2LMHeadModelImpl::forward_cached(
    const at::Tensor& tokens,
    KvCache& cache) {
  const auto x = dtensor::call(transformer, tokens, &cache);
  return at::linear(x.narrow(1, x.size(1) - 1, 1), transformer->wte->weight);
}

} // namespace weft::models
