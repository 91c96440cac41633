#pragma once

#include <cstdint>
#include <string>

#include <torch/torch.h>

#include "models/kv_cache.h"
#include "models/model.h"

namespace weft::models {

// Shape suffixes: see llama.h.

struct Gpt2Config {
  int64_t dim = 128;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t ffn_dim = 512;
  int64_t vocab_size = 256;
  /// The maximum sequence length.
  int64_t max_position_embeddings = 128;
  double norm_eps = 1e-5;
  /// The dropout probability of the embeddings and of the residual branches.
  double dropout = 0;
  /// The dropout probability of attention weights.
  double attention_dropout = 0;
};

/// Causal attention with biases.
class Gpt2AttentionImpl : public torch::nn::Module {
 public:
  explicit Gpt2AttentionImpl(const Gpt2Config& config);
  /// Shapes: x [B, T, D] to [B, T, D].
  at::Tensor forward(const at::Tensor& x, LayerCache* cache = nullptr);

  torch::nn::Linear q_proj{nullptr};
  torch::nn::Linear k_proj{nullptr};
  torch::nn::Linear v_proj{nullptr};
  torch::nn::Linear c_proj{nullptr};

 private:
  int64_t heads_;
  double attention_dropout_;
  double dropout_;
};
TORCH_MODULE(Gpt2Attention);

/// An MLP of two Linears with GELU (tanh approximation) between them.
class Gpt2MLPImpl : public torch::nn::Module {
 public:
  explicit Gpt2MLPImpl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear c_fc{nullptr};
  torch::nn::Linear c_proj{nullptr};

 private:
  double dropout_;
};
TORCH_MODULE(Gpt2MLP);

class Gpt2BlockImpl : public torch::nn::Module {
 public:
  explicit Gpt2BlockImpl(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x, LayerCache* cache = nullptr);

  torch::nn::LayerNorm ln_1{nullptr};
  Gpt2Attention attn{nullptr};
  torch::nn::LayerNorm ln_2{nullptr};
  Gpt2MLP mlp{nullptr};
};
TORCH_MODULE(Gpt2Block);

/// A GPT-2 without the head.
class Gpt2ModelImpl : public torch::nn::Module {
 public:
  explicit Gpt2ModelImpl(const Gpt2Config& config);
  /// Shapes: tokens [B, T] to [B, T, D].
  at::Tensor forward(const at::Tensor& tokens, KvCache* cache = nullptr);

  torch::nn::Embedding wte{nullptr};
  torch::nn::Embedding wpe{nullptr};
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f{nullptr};

 private:
  double dropout_;
};
TORCH_MODULE(Gpt2Model);

/// A GPT-2 with Hugging Face's parameter names; the head is the embedding's
/// weight. Hugging Face's layers are transposed (Conv1D) and q, k and v one:
///   transformer.h.N.attn.c_attn.weight [D, 3 D]: its thirds along dim 1,
///     transposed, are q_proj.weight, k_proj.weight and v_proj.weight here;
///   transformer.h.N.attn.c_attn.bias [3 D]: its thirds are their biases;
///   attn.c_proj.weight, mlp.c_fc.weight, mlp.c_proj.weight: transposed here;
///   all others as they are.
/// Source: Radford et al., Language Models are Unsupervised Multitask Learners
/// (2019); transformers' GPT2LMHeadModel.
class Gpt2LMHeadModelImpl : public Model {
 public:
  explicit Gpt2LMHeadModelImpl(const Gpt2Config& config);
  /// Shapes: tokens [B, T] int64 to logits [B, T, V].
  at::Tensor forward(const at::Tensor& tokens) override;
  at::Tensor forward_cached(const at::Tensor& tokens, KvCache& cache) override;

  Gpt2Model transformer{nullptr};
};
TORCH_MODULE(Gpt2LMHeadModel);

} // namespace weft::models
