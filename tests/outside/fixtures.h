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

#include "checkpoint/files/folder.h"
#include "checkpoint/load/load.h"
#include "checkpoint/load/load_part.h"
#include "checkpoint/load/newest.h"
#include "checkpoint/save/save.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/state_dict/state_dict.h"
#include "checkpoint/transfer/describe_safetensors.h"
#include "data_parallel/comm_hooks/power_sgd_hook.h"
#include "data_parallel/join/join.h"
#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/joinable_optimizer.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/debug/explain.h"
#include "dtensor/debug/visualize_sharding.h"
#include "dtensor/dispatch/register_sharding.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/kernels/cross_entropy.h"
#include "dtensor/nn/activation_checkpoint.h"
#include "dtensor/nn/clip_grad.h"
#include "dtensor/nn/distribute_module.h"
#include "dtensor/nn/local_map.h"
#include "dtensor/scopes/autocast.h"
#include "dtensor/scopes/comm_debug.h"
#include "dtensor/scopes/scopes.h"
#include "dtensor/tensor/dtensor.h"
#include "dtensor/tensor/redistribution.h"
#include "elastic/manager.h"
#include "elastic/pure_distributed_data_parallel.h"
#include "fsdp/fully_sharded_data_parallel.h"
#include "fsdp/joinable_optimizer.h"
#include "matmul/library.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"
#include "testkit/run_ranks.h"
#include "tp/input_reshard.h"
#include "tp/lora.h"
#include "tp/module_pattern.h"
#include "tp/parallelize_module.h"

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
