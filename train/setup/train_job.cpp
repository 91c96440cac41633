#include "train/setup/train_job.h"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/load/load_part.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/kernels/async_tp.h"
#include "dtensor/kernels/dtype_support.h"
#include "models/registry.h"
#include "tp/lora.h"
#include "tp/module_pattern.h"
#include "train/setup/ddp_config.h"
#include "train/setup/fully_sharded_model.h"
#include "train/setup/preflight.h"
#include "train/setup/recompute.h"

namespace weft::train {
namespace {

std::shared_ptr<models::Model> build_deferred(const config::Recipe& recipe) {
  const dtensor::DeferredInit scope;
  return models::make_model(recipe);
}

torch::optim::AdamWOptions adamw_options(const config::Recipe& recipe) {
  const auto& adamw = recipe.optimizer;
  return torch::optim::AdamWOptions(adamw.lr)
      .betas({adamw.betas[0], adamw.betas[1]})
      .eps(adamw.eps)
      .weight_decay(adamw.weight_decay);
}

void check_dtypes(const config::Recipe& recipe, c10::Device device) {
  const auto computed_in = param_dtype(recipe);
  if (!computed_in || device.is_meta()) {
    return;
  }
  const bool is_sharded = recipe.mesh.is_sharded();
  const auto own =
      is_sharded ? recipe.fsdp.param_dtype : recipe.ddp.param_dtype;
  try {
    dtensor::check_dtype(device, *computed_in);
  } catch (const c10::ValueError& error) {
    config::refuse(
        recipe,
        own == config::ParamDtype::kNone ? "train.dtype"
        : is_sharded                     ? "fsdp.param_dtype"
                                         : "ddp.param_dtype",
        error.what_without_backtrace());
  }
}

// `auto` is off on GPUs, because it was not measured there.
dtensor::AsyncTp async_mode(const config::Recipe& recipe) {
  switch (recipe.tp.async_tp) {
    case config::AsyncTp::kOn:
      return dtensor::AsyncTp::kOn;
    case config::AsyncTp::kOff:
      return dtensor::AsyncTp::kOff;
    case config::AsyncTp::kAuto:
      break;
  }
  return recipe.device == config::Device::kCuda ? dtensor::AsyncTp::kOff
                                                : dtensor::AsyncTp::kAuto;
}

// Refuses an adapter of a tied head, which is no module: it multiplies with the
// weight of the embedding.
void check_head_has_weight(
    const config::Recipe& recipe,
    const models::Model& model) {
  constexpr const char* kHead = "lm_head";
  const auto modules = model.named_modules();
  if (modules.contains(kHead)) {
    return;
  }
  for (const auto& pattern : recipe.lora.target_modules) {
    const bool matches_any = std::ranges::any_of(
        modules,
        [&](const auto& item) { return tp::matches(pattern, item.key()); });
    if (tp::matches(pattern, kHead) && !matches_any) {
      config::refuse(
          recipe,
          "lora.target_modules",
          fmt::format(
              "\"{}\": the head of this model is tied to the embedding and "
              "has no weight of its own that an adapter could change. Remove "
              "it from the list{}",
              pattern,
              recipe.model.type == "gpt2"
                  ? ""
                  : ", or set model.tie_embeddings=false"));
    }
  }
}

void add_adapters(const config::Recipe& recipe, models::Model& model) {
  const auto& lora = recipe.lora;
  if (lora.rank == 0) {
    return;
  }
  check_head_has_weight(recipe, model);
  try {
    tp::add_lora(
        model,
        lora.target_modules,
        {.rank = lora.rank, .alpha = lora.alpha, .dropout = lora.dropout});
  } catch (const c10::ValueError& error) {
    config::refuse(
        recipe, "lora.target_modules", error.what_without_backtrace());
  }
}

class DdpModel : public DataParallelModel {
 public:
  DdpModel(
      const std::shared_ptr<models::Model>& model,
      const mesh::DeviceMesh& replicas,
      const ddp::DistributedDataParallelOptions& options)
      : ddp_(model, replicas, options) {}

  ddp::DistributedDataParallel<models::Model>& ddp() { return ddp_; }

  at::Tensor forward(const at::Tensor& input) override { return ddp_(input); }
  at::Tensor forward_cached(const at::Tensor& tokens, models::KvCache& cache)
      override {
    return ddp_.module().forward_cached(tokens, cache);
  }
  std::shared_ptr<void> no_sync() override {
    return std::shared_ptr<void>(
        new data_parallel::NoSyncGuard(ddp_.no_sync()));
  }
  void synchronize_parameters() override { ddp_.synchronize_parameters(); }
  void register_comm_hook(
      std::shared_ptr<data_parallel::CommHook> hook) override {
    ddp_.register_comm_hook(std::move(hook));
  }
  dtensor::StateDict state_dict(
      const std::set<std::string>& ignore) const override {
    return ddp_.state_dict(ignore);
  }
  dtensor::StateDict optimizer_state_dict(
      torch::optim::Optimizer& optimizer) const override {
    return ddp_.optimizer_state_dict(optimizer);
  }
  void load_optimizer_state_dict(
      torch::optim::Optimizer& optimizer,
      const dtensor::StateDict& state) const override {
    ddp_.load_optimizer_state_dict(optimizer, state);
  }

 private:
  ddp::DistributedDataParallel<models::Model> ddp_;
};

} // namespace

std::shared_ptr<models::Model> place_model(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    c10::Device device) {
  check_dtypes(recipe, device);
  auto model = build_deferred(recipe);
  // Uses the costs of the recipe's device, so that a model on the meta device
  // gets the same chunks of matmuls.
  dtensor::set_async_tp(
      mesh,
      async_mode(recipe),
      dtensor::default_async_tp_costs(
          recipe.device == config::Device::kCuda ? "nccl" : "cpu"));
  tp::parallelize_module(*model, mesh["tp"], models::model_plan(recipe));
  add_adapters(recipe, *model);
  return model;
}

TrainJob make_train_job(
    const config::Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    std::optional<c10::Device> device) {
  TrainJob job;
  job.mesh = mesh;
  job.model = place_model(recipe, mesh, device.value_or(mesh.world().device()));
  check_models_agree(*job.model, mesh.world());
  if (recipe.mesh.is_sharded()) {
    job.data_parallel = make_fully_sharded_model(recipe, job.model, mesh);
  } else {
    auto ddp =
        std::make_unique<DdpModel>(job.model, mesh["dp"], ddp_options(recipe));
    job.ddp = &ddp->ddp();
    job.data_parallel = std::move(ddp);
  }
  dtensor::materialize(
      *job.model,
      static_cast<uint64_t>(recipe.seed),
      device.value_or(mesh.world().device()));
  if (auto hook = make_comm_hook(recipe)) {
    if (job.ddp) { // ddp_options() sets ReduceOp::kAvg
      job.loss_scale = static_cast<double>(mesh.size("dp"));
    }
    job.data_parallel->register_comm_hook(std::move(hook));
  }
  recompute_activations(recipe, *job.model);
  job.optimizer = std::make_unique<FusedAdamW>(
      job.model->parameters(), adamw_options(recipe));
  if (recipe.ema.decay > 0) {
    job.average = std::make_unique<EmaWeights>(*job.model, recipe.ema.decay);
  }
  return job;
}

checkpoint::StateDicts state_dicts(TrainJob& job) {
  checkpoint::StateDicts dicts{
      {"model", job.data_parallel->state_dict(job.model->computed_buffers())},
      {"optimizer", job.data_parallel->optimizer_state_dict(*job.optimizer)}};
  if (job.average && job.average->has_begun()) {
    dicts.emplace(kAveragePart, job.average->state_dict(job.mesh));
  }
  if (job.ddp) {
    if (auto hook = job.ddp->comm_hook_state_dict(); !hook.empty()) {
      dicts.emplace(kCommHookPart, std::move(hook));
    }
  }
  return dicts;
}

bool has_part(const checkpoint::Manifest& manifest, const std::string& part) {
  const auto prefix = part + ".";
  const auto first = manifest.tensors.lower_bound(prefix);
  return first != manifest.tensors.end() && first->first.starts_with(prefix);
}

checkpoint::StateDicts optional_state_dicts(
    TrainJob& job,
    const checkpoint::Manifest& manifest) {
  checkpoint::StateDicts dicts;
  if (job.average && has_part(manifest, kAveragePart)) {
    dicts.emplace(kAveragePart, job.average->state_dict(job.mesh));
  }
  if (job.ddp && job.ddp->comm_hook() != nullptr) {
    auto part = checkpoint::empty_part(manifest, kCommHookPart, job.mesh);
    if (!part.empty()) {
      dicts.emplace(kCommHookPart, std::move(part));
    }
  }
  return dicts;
}

void adopt_state(
    TrainJob& job,
    const checkpoint::StateDicts& dicts,
    const config::Recipe& recipe) {
  job.data_parallel->load_optimizer_state_dict(
      *job.optimizer, dicts.at("optimizer"));
  for (auto& group : job.optimizer->param_groups()) {
    group.set_options(
        std::make_unique<torch::optim::AdamWOptions>(adamw_options(recipe)));
  }
}

} // namespace weft::train
