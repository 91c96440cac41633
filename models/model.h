#pragma once

#include <set>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "models/kv_cache.h"

namespace weft::models {

/// The interface of models for the trainer. A model is plain libtorch code
/// without a mesh; its plan (models/plans.h) describes how it is sharded.
class Model : public torch::nn::Module {
 public:
  /// Computes logits. Language models: tokens [B, T] int64 to logits [B, T, V].
  /// Image classifiers: pixels [B, C, H, W] to logits [B, classes].
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  /// Returns the logits after the last of `tokens`, which follow the tokens of
  /// earlier calls with the same `cache`. This default recomputes all tokens;
  /// models with a cache of keys and values compute only the new ones.
  /// Shapes: tokens [B, T] int64 to logits [B, 1, V].
  virtual at::Tensor forward_cached(const at::Tensor& tokens, KvCache& cache) {
    const auto logits = forward(cache.append_tokens(tokens));
    return logits.narrow(1, logits.size(1) - 1, 1);
  }

  /// Returns a scalar that training adds to the loss of the last forward(),
  /// such as the load balancing of experts. It is summed over the samples, so
  /// that it does not depend on how a batch is divided. An undefined tensor
  /// adds nothing.
  virtual at::Tensor auxiliary_loss() { return {}; }

  /// Returns the names of the buffers that follow from the config. Checkpoints
  /// leave them out.
  virtual std::set<std::string> computed_buffers() const { return {}; }

 protected:
  using torch::nn::Module::Module;
};

} // namespace weft::models
