#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "dtensor/init/deferred_init.h"
#include "dtensor/scopes/module_call.h"

namespace weft::fsdp {

template <class Model, class... Args>
std::shared_ptr<Model> deferred(Args... args) {
  const dtensor::DeferredInit scope;
  return std::make_shared<Model>(args...);
}

/// A model and the modules of it that are to be units.
struct TestModel : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  virtual std::vector<torch::nn::Module*> units() = 0;
};

/// Linears of sizes that no number of ranks divides, one after another.
struct Chain : TestModel {
  /// `calls`: through dtensor::call().
  explicit Chain(bool calls) : calls_(calls) {
    const std::vector<int64_t> widths = {6, 7, 5, 1, 17, 3};
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      linears_.push_back(register_module(
          "l" + std::to_string(i),
          torch::nn::Linear(widths[i], widths[i + 1])));
    }
  }

  at::Tensor forward(const at::Tensor& x) override {
    auto h = x;
    for (auto& linear : linears_) {
      h = at::tanh(calls_ ? dtensor::call(linear, h) : linear->forward(h));
    }
    return h;
  }

  std::vector<torch::nn::Module*> units() override {
    std::vector<torch::nn::Module*> units;
    for (auto& linear : linears_) {
      units.push_back(linear.get());
    }
    return units;
  }

  bool calls_;
  std::vector<torch::nn::Linear> linears_;
};

/// A block with a norm, parameters of its own of one dim and of none, and an
/// output that is a view.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 2 * width + 1))),
        down(register_module("down", torch::nn::Linear(2 * width + 1, width))),
        gain(register_parameter("gain", torch::ones({width}))),
        scale(register_parameter("scale", torch::ones({}))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto h = down(at::gelu(up(norm(x)))) * gain * scale;
    return (x + h).view({-1, x.size(-1)}).view(x.sizes());
  }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  at::Tensor gain, scale;
};
TORCH_MODULE(Block);

/// Embedding, blocks whose outputs are written to in place, norm, and a head
/// that is used twice; the last three are the outermost unit's.
struct Transformer : TestModel {
  Transformer()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 6))),
        first(register_module("first", Block(6))),
        second(register_module("second", Block(6))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))),
        head(register_module("head", torch::nn::Linear(6, 11))) {}

  at::Tensor forward(const at::Tensor& tokens) override {
    auto h = embedding(tokens);
    h = dtensor::call(first, h);
    h.mul_(1.5);
    h = dtensor::call(second, h);
    h.add_(0.25);
    const auto logits = head(norm(h));
    return logits + at::matmul(h, head->weight.t());
  }

  std::vector<torch::nn::Module*> units() override {
    return {embedding.get(), first.get(), second.get()};
  }

  torch::nn::Embedding embedding;
  Block first, second;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};

struct ModelCase {
  std::string name;
  std::function<std::shared_ptr<TestModel>()> make;
  /// The input of a step and rank.
  std::function<at::Tensor(int64_t step, int64_t rank)> input;

  std::shared_ptr<TestModel> make_deferred() const {
    const dtensor::DeferredInit scope;
    return make();
  }
};

inline void PrintTo(const ModelCase& each, std::ostream* out) {
  *out << each.name;
}

inline at::Tensor rows_of_numbers(int64_t step, int64_t rank) {
  return at::sin(at::arange(24, at::kFloat) * 1.7 + step + 31.0 * rank)
      .view({4, 6});
}

inline at::Tensor tokens_of(int64_t step, int64_t rank) {
  return ((at::arange(15) * 7 + step * 3 + rank * 5) % 11).view({3, 5});
}

inline std::vector<ModelCase> model_cases() {
  return {
      {"Chain",
       [] { return std::make_shared<Chain>(/*calls=*/false); },
       rows_of_numbers},
      {"CalledChain",
       [] { return std::make_shared<Chain>(/*calls=*/true); },
       rows_of_numbers},
      {"Transformer",
       [] { return std::make_shared<Transformer>(); },
       tokens_of}};
}

} // namespace weft::fsdp
