// Shape suffixes are explained in vit.h.

#include "models/vit.h"

#include "dtensor/scopes/module_call.h"
#include "models/layers.h"

namespace weft::models {
namespace {

torch::nn::LayerNorm vit_norm(const VitConfig& config) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({config.dim}).eps(config.norm_eps));
}

at::Tensor vit_positions(int64_t count, int64_t dim) {
  auto values = torch::empty({1, count, dim});
  torch::nn::init::normal_(values, 0.0, 0.02);
  return values;
}

} // namespace

VitPatchEmbeddingsImpl::VitPatchEmbeddingsImpl(const VitConfig& config)
    : patch_size_(config.patch_size) {
  projection = register_module(
      "projection",
      linear_with_bias(
          config.channels * config.patch_size * config.patch_size, config.dim));
}

at::Tensor VitPatchEmbeddingsImpl::forward(const at::Tensor& pixels) {
  const int64_t B = pixels.size(0);
  const int64_t C = pixels.size(1);
  const int64_t rows = pixels.size(2) / patch_size_;
  const int64_t columns = pixels.size(3) / patch_size_;
  const auto patches =
      pixels.view({B, C, rows, patch_size_, columns, patch_size_})
          .permute({0, 2, 4, 1, 3, 5})
          .reshape({B, rows * columns, C * patch_size_ * patch_size_});
  return projection(patches);
}

VitEmbeddingsImpl::VitEmbeddingsImpl(const VitConfig& config)
    : dropout_(config.dropout) {
  cls_token = register_parameter("cls_token", vit_positions(1, config.dim));
  position_embeddings = register_parameter(
      "position_embeddings", vit_positions(config.patches() + 1, config.dim));
  patch_embeddings =
      register_module("patch_embeddings", VitPatchEmbeddings(config));
}

at::Tensor VitEmbeddingsImpl::forward(const at::Tensor& pixels) {
  const auto patches_BND = patch_embeddings(pixels);
  const auto cls_B1D = cls_token.expand({pixels.size(0), -1, -1});
  const auto x = torch::cat({cls_B1D, patches_BND}, 1) + position_embeddings;
  return torch::dropout(x, dropout_, is_training());
}

VitAttentionImpl::VitAttentionImpl(const VitConfig& config)
    : heads_(config.heads),
      attention_dropout_(config.attention_dropout),
      dropout_(config.dropout) {
  const int64_t D = config.dim;
  q_proj = register_module("q_proj", linear_with_bias(D, D));
  k_proj = register_module("k_proj", linear_with_bias(D, D));
  v_proj = register_module("v_proj", linear_with_bias(D, D));
  o_proj = register_module("o_proj", linear_with_bias(D, D));
}

at::Tensor VitAttentionImpl::forward(const at::Tensor& x) {
  const auto q_BTD = q_proj(x);
  const auto k_BTD = k_proj(x);
  const auto v_BTD = v_proj(x);
  const auto y_BTD = attend(
      q_BTD,
      k_BTD,
      v_BTD,
      heads_,
      is_training() ? attention_dropout_ : 0.0,
      /*is_causal=*/false);
  return torch::dropout(o_proj(y_BTD), dropout_, is_training());
}

VitMLPImpl::VitMLPImpl(const VitConfig& config) : dropout_(config.dropout) {
  fc1 = register_module("fc1", linear_with_bias(config.dim, config.ffn_dim));
  fc2 = register_module("fc2", linear_with_bias(config.ffn_dim, config.dim));
}

at::Tensor VitMLPImpl::forward(const at::Tensor& x) {
  return torch::dropout(fc2(torch::gelu(fc1(x))), dropout_, is_training());
}

VitLayerImpl::VitLayerImpl(const VitConfig& config) {
  layernorm_before = register_module("layernorm_before", vit_norm(config));
  attention = register_module("attention", VitAttention(config));
  layernorm_after = register_module("layernorm_after", vit_norm(config));
  mlp = register_module("mlp", VitMLP(config));
}

at::Tensor VitLayerImpl::forward(const at::Tensor& x) {
  const auto y = x + dtensor::call(attention, layernorm_before(x));
  return y + dtensor::call(mlp, layernorm_after(y));
}

VitModelImpl::VitModelImpl(const VitConfig& config) {
  embeddings = register_module("embeddings", VitEmbeddings(config));
  for (int64_t i = 0; i < config.layers; ++i) {
    layers->push_back(VitLayer(config));
  }
  register_module("layers", layers);
  layernorm = register_module("layernorm", vit_norm(config));
}

at::Tensor VitModelImpl::forward(const at::Tensor& pixels) {
  auto x = dtensor::call(embeddings, pixels);
  for (const auto& layer : *layers) {
    x = dtensor::call(std::static_pointer_cast<VitLayerImpl>(layer), x);
  }
  return layernorm(x);
}

VitForImageClassificationImpl::VitForImageClassificationImpl(
    const VitConfig& config) {
  vit = register_module("vit", VitModel(config));
  classifier = register_module(
      "classifier", linear_with_bias(config.dim, config.num_classes));
}

at::Tensor VitForImageClassificationImpl::forward(const at::Tensor& pixels) {
  const auto x_BTD = dtensor::call(vit, pixels);
  return classifier(x_BTD.select(1, 0));
}

} // namespace weft::models
