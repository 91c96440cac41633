#include "models/mlp.h"

namespace weft::models {

MlpClassifierImpl::MlpClassifierImpl(const MlpConfig& config)
    : dropout_(config.dropout) {
  int64_t width = config.channels * config.image_size * config.image_size;
  for (int64_t i = 0; i < config.layers; ++i) {
    layers->push_back(torch::nn::Linear(width, config.ffn_dim));
    width = config.ffn_dim;
  }
  register_module("layers", layers);
  head = register_module("head", torch::nn::Linear(width, config.num_classes));
}

at::Tensor MlpClassifierImpl::forward(const at::Tensor& pixels) {
  auto x = pixels.flatten(1);
  for (const auto& layer : *layers) {
    x = torch::relu(layer->as<torch::nn::LinearImpl>()->forward(x));
    x = torch::dropout(x, dropout_, is_training());
  }
  return head(x);
}

} // namespace weft::models
