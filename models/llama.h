#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <torch/torch.h>

#include "models/kv_cache.h"
#include "models/model.h"
#include "models/rotary.h"

namespace weft::models {

// Shape suffixes: B batch, T sequence, D dim, H heads, K kv heads,
// d head dim, F ffn dim, V vocabulary.

struct LlamaConfig {
  int64_t dim = 128;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t kv_heads = 4;
  int64_t ffn_dim = 512;
  int64_t vocab_size = 256;
  /// The maximum sequence length of the rotary tables.
  int64_t max_sequence_length = 128;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;
  /// The dropout probability of attention weights.
  double attention_dropout = 0;

  int64_t head_dim() const { return dim / heads; }
};

/// RMS normalization: x / rms(x) * weight.
/// Source: Zhang and Sennrich (2019).
class RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(int64_t dim, double eps);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RMSNorm);

/// Causal grouped-query attention with rotary position embedding.
class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  /// Shapes: x [B, T, D] to [B, T, D].
  at::Tensor forward(
      const at::Tensor& x,
      const RotaryTables& rotary,
      LayerCache* cache = nullptr);

  torch::nn::Linear q_proj{nullptr};
  torch::nn::Linear k_proj{nullptr};
  torch::nn::Linear v_proj{nullptr};
  torch::nn::Linear o_proj{nullptr};

 private:
  int64_t heads_;
  int64_t kv_heads_;
  int64_t head_dim_;
  double dropout_;
};
TORCH_MODULE(LlamaAttention);

/// The module after attention in a decoder layer.
class FeedForward : public torch::nn::Module {
 public:
  /// Shapes: x [B, T, D] to [B, T, D].
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};
/// A function that creates the feed-forward of one layer.
using MakeFeedForward = std::function<std::shared_ptr<FeedForward>()>;

/// SwiGLU: down(silu(gate(x)) * up(x)). Source: Shazeer (2020).
class LlamaMLPImpl : public FeedForward {
 public:
  explicit LlamaMLPImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x) override;

  torch::nn::Linear gate_proj{nullptr};
  torch::nn::Linear up_proj{nullptr};
  torch::nn::Linear down_proj{nullptr};
};
TORCH_MODULE(LlamaMLP);

class LlamaDecoderLayerImpl : public torch::nn::Module {
 public:
  LlamaDecoderLayerImpl(
      const LlamaConfig& config,
      std::shared_ptr<FeedForward> feed_forward);
  at::Tensor forward(
      const at::Tensor& x,
      const RotaryTables& rotary,
      LayerCache* cache = nullptr);

  LlamaAttention self_attn{nullptr};
  std::shared_ptr<FeedForward> mlp;
  RMSNorm input_layernorm{nullptr};
  RMSNorm post_attention_layernorm{nullptr};
};
TORCH_MODULE(LlamaDecoderLayer);

/// A Llama without the head.
class LlamaModelImpl : public torch::nn::Module {
 public:
  LlamaModelImpl(
      const LlamaConfig& config,
      const MakeFeedForward& make_feed_forward);
  /// Shapes: tokens [B, T] to [B, T, D].
  at::Tensor forward(const at::Tensor& tokens, KvCache* cache = nullptr);

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers;
  RMSNorm norm{nullptr};

 private:
  RotaryTables rotary_;
};
TORCH_MODULE(LlamaModel);

/// A Llama with the parameter names of Hugging Face. With tied embeddings, the
/// head uses the embedding's weight, and there is no lm_head.weight.
/// Source: Touvron et al., LLaMA (2023); transformers' LlamaForCausalLM.
class LlamaForCausalLMImpl : public Model {
 public:
  explicit LlamaForCausalLMImpl(const LlamaConfig& config);
  /// Creates a Llama with another feed-forward instead of LlamaMLP.
  LlamaForCausalLMImpl(
      const LlamaConfig& config,
      const MakeFeedForward& make_feed_forward);
  /// Shapes: tokens [B, T] int64 to logits [B, T, V].
  at::Tensor forward(const at::Tensor& tokens) override;
  at::Tensor forward_cached(const at::Tensor& tokens, KvCache& cache) override;
  /// Returns the rotary tables, whose length follows from the recipe.
  std::set<std::string> computed_buffers() const override;

  LlamaModel model{nullptr};
  torch::nn::Linear lm_head{nullptr};

 private:
  at::Tensor logits_of(const at::Tensor& x);
};
TORCH_MODULE(LlamaForCausalLM);

} // namespace weft::models
