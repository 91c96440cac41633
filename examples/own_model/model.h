#pragma once

// A model of one's own: libtorch code for one rank, which knows no mesh.

#include <torch/torch.h>

#include "dtensor/module_call.h"

namespace own {

using torch::nn::Embedding, torch::nn::LayerNorm, torch::nn::Linear;
using torch::nn::ModuleList, weft::dtensor::call;

constexpr int64_t kBytes = 256, kWidth = 64, kHeads = 4, kBlocks = 2;
constexpr int64_t kContext = 64;

struct AttentionImpl : torch::nn::Module {
  Linear query = register_module("query", Linear(kWidth, kWidth));
  Linear key = register_module("key", Linear(kWidth, kWidth));
  Linear value = register_module("value", Linear(kWidth, kWidth));
  Linear out = register_module("out", Linear(kWidth, kWidth));

  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [&](Linear& linear) {
      return linear(x).unflatten(-1, {kHeads, -1}).transpose(1, 2);
    };
    const auto y = at::scaled_dot_product_attention(
        heads(query), heads(key), heads(value), {}, 0.0, /*is_causal=*/true);
    return out(y.transpose(1, 2).flatten(2));
  }
};
TORCH_MODULE(Attention);

struct MLPImpl : torch::nn::Module {
  Linear up = register_module("up", Linear(kWidth, 4 * kWidth));
  Linear down = register_module("down", Linear(4 * kWidth, kWidth));

  at::Tensor forward(const at::Tensor& x) {
    return down(up(x).relu().square());
  }
};
TORCH_MODULE(MLP);

struct BlockImpl : torch::nn::Module {
  LayerNorm norm = register_module("norm", LayerNorm(std::vector{kWidth}));
  Attention attention = register_module("attention", Attention());
  MLP mlp = register_module("mlp", MLP());

  at::Tensor forward(const at::Tensor& x) {
    const auto y = norm(x);
    return x + call(attention, y) + call(mlp, y);
  }
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  Embedding embed = register_module("embed", Embedding(kBytes, kWidth));
  Embedding position = register_module("position", Embedding(kContext, kWidth));
  ModuleList blocks = register_module("blocks", ModuleList());
  LayerNorm norm = register_module("norm", LayerNorm(std::vector{kWidth}));
  Linear head = register_module("head", Linear(kWidth, kBytes));

  TransformerImpl() {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks->push_back(Block());
    }
  }

  at::Tensor forward(const at::Tensor& bytes) {
    auto x = embed(bytes) + position->weight.narrow(0, 0, bytes.size(1));
    for (const auto& block : *blocks) {
      x = call(std::static_pointer_cast<BlockImpl>(block), x);
    }
    return head(norm(x));
  }
};

} // namespace own
