// What the code blocks of the docs take as given. Everything comes from the
// installed package.
#pragma once

#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <torch/library.h>

#include <weft/checkpoint/files/folder.h>
#include <weft/checkpoint/load/load.h>
#include <weft/checkpoint/load/load_part.h>
#include <weft/checkpoint/load/newest.h>
#include <weft/checkpoint/save/save.h>
#include <weft/checkpoint/save/saver.h>
#include <weft/checkpoint/state_dict/state_dict.h>
#include <weft/checkpoint/transfer/describe_safetensors.h>
#include <weft/data_parallel/comm_hooks/power_sgd_hook.h>
#include <weft/data_parallel/join/join.h>
#include <weft/ddp/batch_norm/sync_batch_norm.h>
#include <weft/ddp/distributed_data_parallel.h>
#include <weft/ddp/joinable_optimizer.h>
#include <weft/ddp/zero/zero_redundancy_optimizer.h>
#include <weft/dtensor/debug/explain.h>
#include <weft/dtensor/debug/visualize_sharding.h>
#include <weft/dtensor/dispatch/register_sharding.h>
#include <weft/dtensor/init/deferred_init.h>
#include <weft/dtensor/kernels/cross_entropy.h>
#include <weft/dtensor/nn/activation_checkpoint.h>
#include <weft/dtensor/nn/clip_grad.h>
#include <weft/dtensor/nn/distribute_module.h>
#include <weft/dtensor/nn/local_map.h>
#include <weft/dtensor/scopes/autocast.h>
#include <weft/dtensor/scopes/comm_debug.h>
#include <weft/dtensor/scopes/scopes.h>
#include <weft/dtensor/tensor/dtensor.h>
#include <weft/dtensor/tensor/redistribution.h>
#include <weft/elastic/manager.h>
#include <weft/elastic/pure_distributed_data_parallel.h>
#include <weft/fsdp/fully_sharded_data_parallel.h>
#include <weft/fsdp/joinable_optimizer.h>
#include <weft/matmul/library.h>
#include <weft/mesh/device_mesh.h>
#include <weft/mesh/world.h>
#include <weft/testkit/run_ranks.h>
#include <weft/tp/input_reshard.h>
#include <weft/tp/lora.h>
#include <weft/tp/module_pattern.h>
#include <weft/tp/parallelize_module.h>

namespace outside {

namespace F = torch::nn::functional;

/// Fails this rank, and with it the snippet.
inline void expect(bool holds, const char* what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

struct Config {
  int64_t width = 8;
};

struct MlpImpl : torch::nn::Module {
  torch::nn::Linear up, down;

  explicit MlpImpl(const Config& config = {})
      : up(register_module(
            "up",
            torch::nn::Linear(config.width, 2 * config.width))),
        down(register_module(
            "down",
            torch::nn::Linear(2 * config.width, config.width))) {}
  at::Tensor forward(const at::Tensor& x) { return down(up(x).relu()); }
};
TORCH_MODULE(Mlp);

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm;
  torch::nn::Linear attention;
  Mlp mlp;

  explicit BlockImpl(const Config& config = {})
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(std::vector{config.width}))),
        attention(register_module(
            "attention",
            torch::nn::Linear(config.width, config.width))),
        mlp(register_module("mlp", Mlp(config))) {}
  at::Tensor forward(const at::Tensor& x) { return x + mlp(norm(x)); }
};
TORCH_MODULE(Block);

/// Tokens [batch, position] to logits [batch, position, 16].
struct LanguageModel : torch::nn::Module {
  torch::nn::Embedding embed;
  torch::nn::ModuleList layers;
  torch::nn::Linear head;

  explicit LanguageModel(const Config& config = {})
      : embed(register_module("embed", torch::nn::Embedding(16, config.width))),
        layers(register_module("layers", torch::nn::ModuleList(Block(config)))),
        head(register_module("head", torch::nn::Linear(config.width, 16))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = embed(tokens);
    for (const auto& layer : *layers) {
      x = weft::dtensor::call(std::static_pointer_cast<BlockImpl>(layer), x);
    }
    return head(x);
  }
};

struct Batch {
  at::Tensor x, y;
};

} // namespace outside
