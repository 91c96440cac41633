#include "recipes/train/train_job.h"

#include "dtensor/deferred_init.h"
#include "dtensor/scopes.h"
#include "recipes/models/registry.h"
#include "recipes/train/ddp_config.h"

namespace weft::recipes {
namespace {

std::shared_ptr<Model> build_deferred(const Recipe& recipe) {
  const dtensor::DeferredInit scope;
  auto model = make_model(recipe);
  // Not through libtorch's default dtype, which all threads share.
  if (recipe.train.dtype == "bfloat16") {
    model->to(at::kBFloat16);
  }
  return model;
}

torch::optim::AdamWOptions adamw_options(const Recipe& recipe) {
  const auto& adamw = recipe.optimizer;
  return torch::optim::AdamWOptions(adamw.lr)
      .betas({adamw.betas[0], adamw.betas[1]})
      .eps(adamw.eps)
      .weight_decay(adamw.weight_decay);
}

} // namespace

TrainJob make_train_job(
    const Recipe& recipe,
    const mesh::DeviceMesh& mesh,
    std::optional<c10::Device> device) {
  TrainJob job;
  job.mesh = mesh;
  job.model = build_deferred(recipe);
  tp::parallelize_module(*job.model, mesh["tp"], model_plan(recipe));
  job.ddp = std::make_unique<ddp::DistributedDataParallel<Model>>(
      job.model, mesh["dp"], ddp_options(recipe.ddp));
  dtensor::materialize(
      *job.model,
      static_cast<uint64_t>(recipe.seed),
      device.value_or(mesh.world().device()));
  if (auto hook = make_comm_hook(recipe.ddp)) {
    job.loss_scale = static_cast<double>(mesh.size("dp"));
    job.ddp->register_comm_hook(std::move(hook));
  }
  job.optimizer = std::make_unique<FusedAdamW>(
      job.model->parameters(), adamw_options(recipe));
  return job;
}

checkpoint::StateDicts state_dicts(TrainJob& job) {
  checkpoint::StateDicts dicts{
      {"model", job.ddp->state_dict(job.model->computed_buffers())},
      {"optimizer", job.ddp->optimizer_state_dict(*job.optimizer)}};
  if (auto hook = job.ddp->comm_hook_state_dict(); !hook.empty()) {
    dicts.emplace(kCommHookPart, std::move(hook));
  }
  return dicts;
}

checkpoint::StateDicts hook_state_to_load(
    const TrainJob& job,
    const checkpoint::Manifest& manifest,
    const std::string& saved_on_mesh) {
  const auto prefix = std::string(kCommHookPart) + ".";
  checkpoint::StateDicts dicts;
  if (job.ddp->comm_hook() == nullptr ||
      saved_on_mesh != job.mesh.to_string()) {
    return dicts;
  }
  for (const auto& [key, record] : manifest.tensors) {
    // A row a rank: see ddp/hook_state_rows.h.
    if (key.starts_with(prefix) && record.shape.size() == 2) {
      const auto row = at::zeros(
          {1, record.shape[1]}, at::TensorOptions().dtype(record.dtype));
      dicts[kCommHookPart].emplace(
          key.substr(prefix.size()), job.ddp->comm_hook_row(row));
    }
  }
  return dicts;
}

void adopt_state(
    TrainJob& job,
    const checkpoint::StateDicts& dicts,
    const Recipe& recipe) {
  job.ddp->load_optimizer_state_dict(*job.optimizer, dicts.at("optimizer"));
  for (auto& group : job.optimizer->param_groups()) {
    group.set_options(
        std::make_unique<torch::optim::AdamWOptions>(adamw_options(recipe)));
  }
}

at::Tensor token_loss(
    const at::Tensor& logits,
    const at::Tensor& targets,
    int64_t tokens) {
  namespace F = torch::nn::functional;
  // Every rank of the tp mesh has the targets of its replica.
  const dtensor::ImplicitReplication whole_targets;
  return F::cross_entropy(
             logits.flatten(0, 1),
             targets.reshape(-1),
             F::CrossEntropyFuncOptions().reduction(torch::kSum)) /
         static_cast<double>(tokens);
}

} // namespace weft::recipes
