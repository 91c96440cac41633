// A user-defined model, trained on the bytes of a file over a dp x tp mesh:
//   weftrun --nproc-per-node 4 -- own_model --tp=2 --steps=100 TEXT_FILE
// docs/your_own_model.md explains it.

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>

#include <torch/torch.h>

#include <weft/checkpoint/load/load.h>
#include <weft/checkpoint/save/save.h>
#include <weft/checkpoint/store/store.h>
#include <weft/ddp/distributed_data_parallel.h>
#include <weft/dtensor/init/deferred_init.h>
#include <weft/dtensor/nn/activation_checkpoint.h>
#include <weft/dtensor/nn/clip_grad.h>
#include <weft/dtensor/scopes/autocast.h>
#include <weft/dtensor/scopes/scopes.h>
#include <weft/mesh/device_mesh.h>
#include <weft/mesh/world.h>
#include <weft/tp/lora.h>
#include <weft/tp/parallelize_module.h>

#include "model.h"
#include "plan.h"
#include "text.h"

namespace own {
namespace {

namespace checkpoint = weft::checkpoint;
namespace dtensor = weft::dtensor;
using weft::mesh::DeviceMesh, weft::mesh::World;
using Model = TransformerImpl;
using DDP = weft::ddp::DistributedDataParallel<Model>;
using Flags = std::map<std::string, std::string>;

constexpr int64_t kSamples = 12; // per step, over all replicas
constexpr int64_t kContext = Config().context;

std::shared_ptr<Model> make_model(const Flags& flags, const DeviceMesh& mesh) {
  std::shared_ptr<Model> model;
  {
    const dtensor::DeferredInit no_values_yet;
    model = std::make_shared<Model>();
  }
  weft::tp::parallelize_module(*model, mesh["tp"], plan());
  if (flags.contains("lora")) {
    weft::tp::add_lora(
        *model,
        {"blocks.*.attention.*", "blocks.*.mlp.*"},
        {.rank = std::stoll(flags.at("lora"))});
  }
  dtensor::materialize(*model, /*seed=*/1);
  if (flags.contains("recompute")) {
    dtensor::apply_activation_checkpointing(
        *model, [](const std::string&, torch::nn::Module& module) {
          return module.as<BlockImpl>() != nullptr;
        });
  }
  return model;
}

/// Loads the weights of another run, which had no adapters.
void load_weights(const DDP& ddp, const std::string& folder) {
  auto weights = ddp.state_dict();
  std::erase_if(weights, [](const auto& item) {
    return item.first.find("lora_") != std::string::npos;
  });
  checkpoint::load(
      checkpoint::list_steps(folder).at(0).path, {{"model", weights}});
}

checkpoint::StateDicts state_of(
    const DDP& ddp,
    torch::optim::Optimizer& optimizer) {
  return {
      {"model", ddp.state_dict()},
      {"optimizer", ddp.optimizer_state_dict(optimizer)}};
}

/// Resumes from the newest checkpoint, if there is one. Returns its number of
/// steps.
int64_t resume(
    const DDP& ddp,
    torch::optim::Optimizer& optimizer,
    const std::string& folder) {
  const auto saved = checkpoint::list_steps(folder);
  if (saved.empty()) {
    return 0;
  }
  const auto state = state_of(ddp, optimizer);
  checkpoint::load(saved.front().path, state);
  ddp.load_optimizer_state_dict(optimizer, state.at("optimizer"));
  return saved.front().step;
}

/// Returns the loss of this replica's samples [count, kContext + 1].
at::Tensor loss_of(DDP& ddp, const at::Tensor& rows, bool bf16) {
  const dtensor::Autocast autocast(at::kCPU, at::kBFloat16, bf16);
  // The targets are plain tensors with the same values on all ranks of a
  // replica.
  const dtensor::ImplicitReplication whole_targets;
  const auto logits = ddp(rows.slice(/*dim=*/1, 0, kContext));
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), rows.slice(/*dim=*/1, 1).flatten());
}

void run(const Flags& flags) {
  const auto world = World::from_env();
  const int64_t tp = std::stoll(flags.at("tp"));
  const int64_t dp = world.world_size() / tp;
  const auto mesh = DeviceMesh::create(world, {dp, tp}, {"dp", "tp"});
  TORCH_CHECK_VALUE(kSamples % dp == 0, kSamples, " samples over ", dp);
  const int64_t own = kSamples / dp;
  const auto text = read_bytes(flags.at("text"));

  DDP ddp(make_model(flags, mesh), mesh["dp"]);
  const auto parameters = ddp.module().parameters();
  torch::optim::AdamW optimizer(parameters, /*lr=*/3e-3);
  if (flags.contains("from")) {
    load_weights(ddp, flags.at("from"));
  }
  int64_t i = 0;
  if (flags.contains("save")) {
    i = resume(ddp, optimizer, flags.at("save"));
  }
  for (const int64_t steps = std::stoll(flags.at("steps")); i < steps; ++i) {
    const int64_t first = i * kSamples + mesh.coordinate("dp") * own;
    const auto rows = samples(text, first, own, kContext + 1);
    const auto loss = loss_of(ddp, rows, flags.contains("bf16"));
    loss.backward();
    dtensor::clip_grad_norm_(parameters, /*max_norm=*/1.0);
    optimizer.step();
    optimizer.zero_grad();

    const auto mean = at::full({1}, loss.item<double>(), at::kDouble);
    mesh.group("dp").all_reduce(mean, weft::mesh::ReduceOp::kAvg).wait();
    if (world.rank() == 0) {
      std::printf("step %d  loss %.5f\n", int(i + 1), mean.item<double>());
    }
    if (flags.contains("save") && i + 1 == steps) {
      checkpoint::save(
          flags.at("save"), state_of(ddp, optimizer), {.step = steps});
    }
  }
}

/// Returns `--name=value` and `--name` by name. Any other argument is the text.
Flags parse(std::span<char*> arguments) {
  Flags flags{{"tp", "1"}, {"steps", "20"}, {"text", __FILE__}};
  for (const std::string argument : arguments) {
    const auto equals = argument.find('=');
    if (argument.starts_with("--")) {
      flags[argument.substr(2, equals - 2)] =
          equals < argument.size() ? argument.substr(equals + 1) : "";
    } else {
      flags.at("text") = argument;
    }
  }
  return flags;
}

} // namespace
} // namespace own

int main(int argc, char** argv) {
  try {
    own::run(own::parse(std::span(argv, argc).subspan(1)));
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
  return 0;
}
