#pragma once

// A model of one's own: libtorch code for one rank, which knows no mesh.

#include <torch/torch.h>

#include <weft/dtensor/scopes/module_call.h>
#include <weft/models/model.h>

namespace own {

using torch::nn::Embedding, torch::nn::LayerNorm, torch::nn::Linear;
using torch::nn::ModuleList, weft::dtensor::call;

constexpr int64_t kBytes = 256;

struct Config {
  int64_t width = 64, heads = 4, blocks = 2, context = 64;
};

struct AttentionImpl : torch::nn::Module {
  int64_t heads;
  Linear query, key, value, out;

  explicit AttentionImpl(const Config& c)
      : heads(c.heads),
        query(register_module("query", Linear(c.width, c.width))),
        key(register_module("key", Linear(c.width, c.width))),
        value(register_module("value", Linear(c.width, c.width))),
        out(register_module("out", Linear(c.width, c.width))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto split = [&](Linear& linear) {
      return linear(x).unflatten(-1, {heads, -1}).transpose(1, 2);
    };
    const auto q = split(query);
    const auto k = split(key);
    const auto v = split(value);
    const auto y =
        at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    return out(y.transpose(1, 2).flatten(2));
  }
};
TORCH_MODULE(Attention);

struct MLPImpl : torch::nn::Module {
  Linear up, down;

  explicit MLPImpl(int64_t width)
      : up(register_module("up", Linear(width, 4 * width))),
        down(register_module("down", Linear(4 * width, width))) {}

  at::Tensor forward(const at::Tensor& x) {
    return down(up(x).relu().square());
  }
};
TORCH_MODULE(MLP);

struct BlockImpl : torch::nn::Module {
  LayerNorm norm;
  Attention attention;
  MLP mlp;

  explicit BlockImpl(const Config& c)
      : norm(register_module("norm", LayerNorm(std::vector{c.width}))),
        attention(register_module("attention", Attention(c))),
        mlp(register_module("mlp", MLP(c.width))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto y = norm(x);
    const auto attended = call(attention, y);
    const auto passed = call(mlp, y);
    return x + attended + passed;
  }
};
TORCH_MODULE(Block);

/// The model. Recipes train any Model, which is a torch::nn::Module.
struct TransformerImpl : weft::models::Model {
  Embedding embed, position;
  ModuleList blocks;
  LayerNorm norm;
  Linear head;

  explicit TransformerImpl(const Config& c = {})
      : embed(register_module("embed", Embedding(kBytes, c.width))),
        position(register_module("position", Embedding(c.context, c.width))),
        blocks(register_module("blocks", ModuleList())),
        norm(register_module("norm", LayerNorm(std::vector{c.width}))),
        head(register_module("head", Linear(c.width, kBytes))) {
    for (int64_t i = 0; i < c.blocks; ++i) {
      blocks->push_back(Block(c));
    }
  }

  at::Tensor forward(const at::Tensor& bytes) override {
    const auto embedded = embed(bytes);
    auto x = embedded + position->weight.narrow(0, 0, bytes.size(1));
    for (const auto& block : *blocks) {
      x = call(std::static_pointer_cast<BlockImpl>(block), x);
    }
    return head(norm(x));
  }
};

} // namespace own
