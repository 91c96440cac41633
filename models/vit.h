#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "models/model.h"

namespace weft::models {

// Shape suffixes: see llama.h; C channels, N patches, P pixels of a patch in
// all channels. T is N + 1: the class token comes first.

struct VitConfig {
  int64_t image_size = 8;
  int64_t patch_size = 2;
  int64_t channels = 1;
  int64_t dim = 64;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t ffn_dim = 128;
  int64_t num_classes = 10;
  double norm_eps = 1e-12;
  /// The dropout probability of the embeddings and of the residual branches.
  double dropout = 0;
  /// The dropout probability of attention weights.
  double attention_dropout = 0;

  int64_t patches() const {
    return (image_size / patch_size) * (image_size / patch_size);
  }
};

/// The embedding of patches as tokens.
class VitPatchEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit VitPatchEmbeddingsImpl(const VitConfig& config);
  /// Shapes: pixels [B, C, H, W] to [B, N, D].
  at::Tensor forward(const at::Tensor& pixels);

  torch::nn::Linear projection{nullptr};

 private:
  int64_t patch_size_;
};
TORCH_MODULE(VitPatchEmbeddings);

/// The embeddings: class token, patches and learned positions.
class VitEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit VitEmbeddingsImpl(const VitConfig& config);
  /// Shapes: pixels [B, C, H, W] to [B, T, D].
  at::Tensor forward(const at::Tensor& pixels);

  /// The parameters.
  /// Shapes: [1, 1, D] and [1, T, D].
  at::Tensor cls_token;
  at::Tensor position_embeddings;
  VitPatchEmbeddings patch_embeddings{nullptr};

 private:
  double dropout_;
};
TORCH_MODULE(VitEmbeddings);

/// Full (non-causal) attention with biases.
class VitAttentionImpl : public torch::nn::Module {
 public:
  explicit VitAttentionImpl(const VitConfig& config);
  /// Shapes: x [B, T, D] to [B, T, D].
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear q_proj{nullptr};
  torch::nn::Linear k_proj{nullptr};
  torch::nn::Linear v_proj{nullptr};
  torch::nn::Linear o_proj{nullptr};

 private:
  int64_t heads_;
  double attention_dropout_;
  double dropout_;
};
TORCH_MODULE(VitAttention);

/// An MLP of two Linears with GELU between them.
class VitMLPImpl : public torch::nn::Module {
 public:
  explicit VitMLPImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear fc1{nullptr};
  torch::nn::Linear fc2{nullptr};

 private:
  double dropout_;
};
TORCH_MODULE(VitMLP);

class VitLayerImpl : public torch::nn::Module {
 public:
  explicit VitLayerImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::LayerNorm layernorm_before{nullptr};
  VitAttention attention{nullptr};
  torch::nn::LayerNorm layernorm_after{nullptr};
  VitMLP mlp{nullptr};
};
TORCH_MODULE(VitLayer);

/// A vision transformer without the head.
class VitModelImpl : public torch::nn::Module {
 public:
  explicit VitModelImpl(const VitConfig& config);
  /// Shapes: pixels [B, C, H, W] to [B, T, D].
  at::Tensor forward(const at::Tensor& pixels);

  VitEmbeddings embeddings{nullptr};
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm layernorm{nullptr};
};
TORCH_MODULE(VitModel);

/// A vision transformer that classifies by its class token, with the parameter
/// names of transformers' ViTForImageClassification. Patches are unfolded and
/// go through a Linear: patch_embeddings.projection.weight is [D, P] here, and
/// the flattened [D, C, patch, patch] of a convolution there.
/// Source: Dosovitskiy et al., An Image is Worth 16x16 Words (2021).
class VitForImageClassificationImpl : public Model {
 public:
  explicit VitForImageClassificationImpl(const VitConfig& config);
  /// Shapes: pixels [B, C, H, W] to logits [B, classes].
  at::Tensor forward(const at::Tensor& pixels) override;

  VitModel vit{nullptr};
  torch::nn::Linear classifier{nullptr};
};
TORCH_MODULE(VitForImageClassification);

} // namespace weft::models
