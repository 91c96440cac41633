#pragma once

#include <set>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "models/kv_cache.h"

namespace weft::recipes {

/// What the trainer needs of a model. Models are plain libtorch code that knows
/// no mesh; how one is cut stands in the plan beside it.
class Model : public torch::nn::Module {
 public:
  /// Language models: tokens [B, T] int64 to logits [B, T, V]. Classifiers of
  /// images: pixels [B, C, H, W] to logits [B, classes].
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  /// The logits after the last of `tokens`, which follow those that calls with
  /// the same `cache` had before. Here everything is computed anew; models
  /// with a cache of keys and values compute what is new.
  /// Shapes: tokens [B, T] int64 to logits [B, 1, V].
  virtual at::Tensor forward_cached(const at::Tensor& tokens, KvCache& cache) {
    const auto logits = forward(cache.append_tokens(tokens));
    return logits.narrow(1, logits.size(1) - 1, 1);
  }

  /// What training adds to the loss of the last forward(), summed over its
  /// samples, so that it does not depend on how a batch is divided (balance of
  /// experts); undefined: nothing. Of no dims.
  virtual at::Tensor auxiliary_loss() { return {}; }

  /// Buffers that follow from the config, which checkpoints leave out.
  virtual std::set<std::string> computed_buffers() const { return {}; }

 protected:
  using torch::nn::Module::Module;
};

} // namespace weft::recipes
