#include "train/setup/fully_sharded_model.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/modules/embedding.h>

#include "fsdp/fully_sharded_data_parallel.h"
#include "train/setup/ddp_config.h"
#include "train/setup/job_mesh.h"
#include "train/setup/module_names.h"

namespace weft::train {
namespace {

constexpr const char* kUnits = "fsdp.units";

fsdp::FullyShardOptions unit_options(const config::Recipe& recipe) {
  fsdp::FullyShardOptions options{
      .reshard_to = recipe.fsdp.reshard_to,
      .reduce_op = mesh::ReduceOp::kSum,
      .mixed_precision = {
          .param_dtype = param_dtype(recipe),
          .reduce_dtype = reduce_dtype(recipe.fsdp.reduce_dtype)}};
  using config::ReshardAfterForward;
  const auto reshard = recipe.fsdp.reshard_after_forward;
  if (reshard != ReshardAfterForward::kAuto) {
    options.reshard_after_forward = reshard == ReshardAfterForward::kAlways;
  }
  return options;
}

fsdp::BackwardPrefetch backward_prefetch(config::BackwardPrefetch prefetch) {
  switch (prefetch) {
    case config::BackwardPrefetch::kPre:
      return fsdp::BackwardPrefetch::kPre;
    case config::BackwardPrefetch::kPost:
      return fsdp::BackwardPrefetch::kPost;
    case config::BackwardPrefetch::kNone:
      break;
  }
  return fsdp::BackwardPrefetch::kNone;
}

fsdp::ScheduleOptions schedule_options(const config::Recipe& recipe) {
  return {
      .forward_prefetch = recipe.fsdp.forward_prefetch,
      .backward_prefetch = backward_prefetch(recipe.fsdp.backward_prefetch),
      .reduce_in_flight = recipe.fsdp.reduce_in_flight};
}

// Returns true if the head shares the weight of the embedding, so that forward
// uses the weight at its end, too.
bool ties_embedding(const config::Recipe& recipe) {
  return recipe.model.tie_embeddings || recipe.model.type == "gpt2";
}

// Returns the blocks, and the embeddings outside of blocks. The outermost unit
// has all other parameters.
std::vector<std::string> default_units(
    const config::Recipe& recipe,
    models::Model& model) {
  auto names = block_names(model);
  // A block inside another block belongs to the outer one.
  std::erase_if(names, [all = names](const std::string& name) {
    return std::ranges::any_of(all, [&](const std::string& other) {
      return name.starts_with(other + ".");
    });
  });
  if (ties_embedding(recipe)) {
    return names;
  }
  const auto blocks = names;
  for (const auto& item : model.named_modules()) {
    const bool is_inside = std::ranges::any_of(blocks, [&](const auto& name) {
      return item.key().starts_with(name + ".");
    });
    if (item.value()->as<torch::nn::EmbeddingImpl>() && !is_inside) {
      names.push_back(item.key());
    }
  }
  return names;
}

std::vector<std::string> unit_names(
    const config::Recipe& recipe,
    models::Model& model) {
  const auto& units = recipe.fsdp.units;
  if (units == std::vector<std::string>{"auto"}) {
    return default_units(recipe, model);
  }
  return matching_names(recipe, kUnits, units, model);
}

class FullyShardedModel : public DataParallelModel {
 public:
  FullyShardedModel(
      const config::Recipe& recipe,
      const std::shared_ptr<models::Model>& model,
      const mesh::DeviceMesh& shards)
      : fsdp_(model, shards, unit_options(recipe), schedule_options(recipe)),
        accumulates_locally_(
            recipe.fsdp.accumulate == config::Accumulate::kLocal) {}

  at::Tensor forward(const at::Tensor& input) override { return fsdp_(input); }
  at::Tensor forward_cached(const at::Tensor& tokens, models::KvCache& cache)
      override {
    const fsdp::ForwardScope scope(fsdp_);
    return fsdp_.module().forward_cached(tokens, cache);
  }
  std::shared_ptr<void> no_sync() override {
    return std::shared_ptr<void>(new fsdp::NoSyncGuard(
        accumulates_locally_ ? fsdp_.no_sync() : fsdp_.no_all_reduce()));
  }
  void synchronize_parameters() override { fsdp_.synchronize_parameters(); }
  void register_comm_hook(
      std::shared_ptr<data_parallel::CommHook> hook) override {
    fsdp_.register_comm_hook(std::move(hook));
  }
  GatheredMemory gathered_memory() const override {
    return {
        .unsharded = fsdp_.peak_unsharded_bytes(),
        .messages = fsdp_.peak_message_bytes(),
        .held = fsdp_.held_bytes()};
  }
  dtensor::StateDict state_dict(
      const std::set<std::string>& ignore) const override {
    return fsdp_.state_dict(ignore);
  }
  dtensor::StateDict optimizer_state_dict(
      torch::optim::Optimizer& optimizer) const override {
    return fsdp_.optimizer_state_dict(optimizer);
  }
  void load_optimizer_state_dict(
      torch::optim::Optimizer& optimizer,
      const dtensor::StateDict& state) const override {
    fsdp_.load_optimizer_state_dict(optimizer, state);
  }

 private:
  fsdp::FullyShardedDataParallel<models::Model> fsdp_;
  bool accumulates_locally_;
};

} // namespace

std::unique_ptr<DataParallelModel> make_fully_sharded_model(
    const config::Recipe& recipe,
    const std::shared_ptr<models::Model>& model,
    const mesh::DeviceMesh& mesh) {
  const auto shards = data_parallel_mesh(mesh);
  auto names = unit_names(recipe, *model);
  // Inner modules are sharded before outer ones.
  std::ranges::stable_sort(names, std::ranges::greater(), [](const auto& name) {
    return std::ranges::count(name, '.');
  });
  const auto modules = model->named_modules();
  for (const auto& name : names) {
    if (name.empty()) {
      continue; // the model, which is sharded last
    }
    try {
      fsdp::fully_shard(*modules[name], shards, unit_options(recipe));
    } catch (const c10::ValueError& error) {
      config::refuse(
          recipe,
          kUnits,
          "\"" + name + "\": " + error.what_without_backtrace());
    }
  }
  return std::make_unique<FullyShardedModel>(recipe, model, shards);
}

} // namespace weft::train
