#pragma once

#include <memory>

#include <torch/torch.h>

#include "tests/tp/models.h"

namespace weft::tp {

struct FeedForward : torch::nn::Module {
  FeedForward()
      : up(register_module("up", torch::nn::Linear(6, 7))),
        down(register_module("down", torch::nn::Linear(7, 6))) {}
  at::Tensor forward(const at::Tensor& x) { return down(at::tanh(up(x))); }
  torch::nn::Linear up, down;
};

struct Stack : torch::nn::Module {
  Stack()
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))),
        first(register_module("first", std::make_shared<FeedForward>())),
        second(register_module("second", std::make_shared<FeedForward>())) {}
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(first->forward(norm(x)));
  }
  torch::nn::LayerNorm norm;
  std::shared_ptr<FeedForward> first, second;
};

template <class M>
inline std::shared_ptr<M> deferred() {
  const dtensor::DeferredInit scope;
  return std::make_shared<M>();
}

} // namespace weft::tp
