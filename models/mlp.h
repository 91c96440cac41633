#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "models/model.h"

namespace weft::models {

struct MlpConfig {
  int64_t image_size = 8;
  int64_t channels = 1;
  /// The number of hidden layers.
  int64_t layers = 2;
  /// The width of the hidden layers.
  int64_t ffn_dim = 256;
  int64_t num_classes = 10;
  /// The dropout probability of hidden layers.
  double dropout = 0;
};

/// An MLP on flattened images: Linears with ReLU between them.
class MlpClassifierImpl : public Model {
 public:
  explicit MlpClassifierImpl(const MlpConfig& config);
  /// Shapes: pixels [B, C, H, W] to logits [B, classes].
  at::Tensor forward(const at::Tensor& pixels) override;

  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};

 private:
  double dropout_;
};
TORCH_MODULE(MlpClassifier);

} // namespace weft::models
