// What the sharded optimizer saves and costs: weftrun --nproc-per-node 2 --
// ddp_zero_bench DIM LAYERS ROUNDS. Steps of a Llama on random tokens with each
// variant in turn; one line of JSON.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "cli/bench/measure.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/zero/zero_redundancy_optimizer.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor.h"
#include "mesh/world.h"
#include "models/llama.h"

namespace weft {
namespace {

using cli::bench::median;
using cli::bench::microseconds;
using cli::bench::rounded;
using ddp::ZeroPartition;
using ddp::ZeroRedundancyOptimizer;
using models::LlamaForCausalLMImpl;

constexpr int64_t kBenchBatch = 4;
constexpr int64_t kBenchSequence = 128;
constexpr int64_t kBenchVocab = 256;

models::LlamaConfig config_of(int64_t dim, int64_t layers) {
  models::LlamaConfig config;
  config.dim = dim;
  config.layers = layers;
  config.heads = dim / 32;
  config.kv_heads = dim / 64;
  config.ffn_dim = 3 * dim;
  config.vocab_size = kBenchVocab;
  config.max_sequence_length = kBenchSequence;
  return config;
}

/// Blocks wait for their parameters, the embedding before them and the head
/// behind them for theirs.
void wait_in_forward(
    ZeroRedundancyOptimizer& optimizer,
    LlamaForCausalLMImpl& llama) {
  auto& model = *llama.model;
  dtensor::module_hooks(model).before.emplace_back(
      [&](std::vector<at::Tensor>&) {
        optimizer.wait_for_parameters(*model.embed_tokens);
      });
  for (const auto& layer : *model.layers) {
    optimizer.wait_before_forward(*layer);
  }
  dtensor::module_hooks(*model.layers->ptr(model.layers->size() - 1))
      .after.emplace_back([&](const at::Tensor& x) {
        optimizer.wait_for_parameters();
        return x;
      });
}

/// A model and its optimizer.
struct Variant {
  std::string name = {};
  std::shared_ptr<LlamaForCausalLMImpl> model = {};
  std::unique_ptr<ddp::DistributedDataParallel<LlamaForCausalLMImpl>> ddp = {};
  std::unique_ptr<torch::optim::Optimizer> optimizer = {};
  ZeroRedundancyOptimizer* zero = nullptr;
  std::vector<double> whole_ms = {};
  std::vector<double> step_ms = {};

  void train(const at::Tensor& tokens, bool is_timed) {
    auto group = ddp->mesh().group(int64_t{0});
    group.barrier();
    double step = 0;
    const double whole = microseconds([&] {
      optimizer->zero_grad();
      const auto logits = (*ddp)(tokens);
      at::cross_entropy_loss(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
          .backward();
      step = microseconds([&] { optimizer->step(); });
    });
    if (is_timed) {
      whole_ms.push_back(whole / 1e3);
      step_ms.push_back(step / 1e3);
    }
  }

  int64_t state_bytes() {
    int64_t bytes = 0;
    for (const auto& [key, tensor] :
         zero ? zero->state_dict(*model)
              : ddp->optimizer_state_dict(*optimizer)) {
      const auto local = dtensor::to_local(tensor);
      if (key.starts_with("state.") && local.dim() > 0) {
        bytes += static_cast<int64_t>(local.nbytes());
      }
    }
    return bytes;
  }
};

Variant make_variant(
    std::string name,
    const models::LlamaConfig& config,
    const mesh::DeviceMesh& dp,
    std::optional<ddp::ZeroRedundancyOptimizerOptions> options) {
  Variant variant;
  variant.name = std::move(name);
  variant.model = std::make_shared<LlamaForCausalLMImpl>(config);
  variant.ddp =
      std::make_unique<ddp::DistributedDataParallel<LlamaForCausalLMImpl>>(
          variant.model, dp);
  const auto adamw = torch::optim::AdamWOptions(1e-3);
  if (!options) {
    variant.optimizer = std::make_unique<torch::optim::AdamW>(
        variant.model->parameters(), adamw);
    return variant;
  }
  options->bucket_cap_mb = 4;
  auto zero = ddp::make_zero<torch::optim::AdamW>(
      variant.model->parameters(), adamw, dp, *options);
  variant.zero = zero.get();
  variant.optimizer = std::move(zero);
  if (options->overlap_with_forward) {
    wait_in_forward(*variant.zero, *variant.model);
  }
  return variant;
}

std::vector<Variant> make_variants(
    const models::LlamaConfig& config,
    const mesh::DeviceMesh& dp) {
  std::vector<Variant> all;
  all.push_back(make_variant("plain", config, dp, std::nullopt));
  for (const auto partition :
       {ZeroPartition::kWholeParameters, ZeroPartition::kEvenSplit}) {
    for (const bool views : {false, true}) {
      for (const bool overlap : {false, true}) {
        all.push_back(make_variant(
            std::string(
                partition == ZeroPartition::kEvenSplit ? "split" : "whole") +
                (views ? "_views" : "") + (overlap ? "_overlap" : ""),
            config,
            dp,
            ddp::ZeroRedundancyOptimizerOptions{
                .partition = partition,
                .parameters_as_bucket_view = views,
                .overlap_with_forward = overlap}));
      }
    }
  }
  return all;
}

void run_zero_bench(int64_t dim, int64_t layers, int64_t rounds) {
  at::set_num_threads(1);
  const auto world = mesh::World::from_env();
  const auto dp = mesh::DeviceMesh::create(world, {world.world_size()}, {"dp"});
  auto variants = make_variants(config_of(dim, layers), dp);
  for (int64_t round = -2; round < rounds; ++round) {
    const auto tokens =
        at::randint(kBenchVocab, {kBenchBatch, kBenchSequence}, at::kLong);
    for (auto& variant : variants) {
      variant.train(tokens, round >= 0);
    }
  }
  int64_t parameters = 0;
  for (const auto& parameter : variants.front().model->parameters()) {
    parameters += parameter.numel();
  }
  nlohmann::ordered_json result{
      {"dp", world.world_size()}, {"parameters", parameters}};
  for (auto& variant : variants) {
    result[variant.name] = {
        {"state_bytes", variant.state_bytes()},
        {"train_ms", rounded(median(variant.whole_ms), 1e2)},
        {"step_ms", rounded(median(variant.step_ms), 1e2)}};
  }
  if (world.rank() == 0) {
    std::printf("%s\n", result.dump().c_str());
  }
}

} // namespace
} // namespace weft

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: ddp_zero_bench DIM LAYERS ROUNDS\n");
    return 2;
  }
  weft::run_zero_bench(
      std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3]));
  return 0;
}
