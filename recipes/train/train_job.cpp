#include "recipes/train/train_job.h"

#include "dtensor/deferred_init.h"
#include "dtensor/losses.h"
#include "dtensor/scopes.h"
#include "recipes/models/registry.h"
#include "recipes/train/ddp_config.h"
#include "recipes/train/recompute.h"

namespace weft::recipes {
namespace {

std::shared_ptr<Model> build_deferred(const Recipe& recipe) {
  const dtensor::DeferredInit scope;
  return make_model(recipe);
}

torch::optim::AdamWOptions adamw_options(const Recipe& recipe) {
  const auto& adamw = recipe.optimizer;
  return torch::optim::AdamWOptions(adamw.lr)
      .betas({adamw.betas[0], adamw.betas[1]})
      .eps(adamw.eps)
      .weight_decay(adamw.weight_decay);
}

at::Tensor summed_loss(
    const at::Tensor& logits,
    const at::Tensor& targets,
    dtensor::CrossEntropyOptions options = {}) {
  options.reduction = at::Reduction::Sum;
  // Every rank of the tp mesh has the targets of its replica.
  const dtensor::ImplicitReplication whole_targets;
  return dtensor::cross_entropy(
      logits.flatten(0, -2), targets.reshape(-1), options);
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
      job.model, mesh["dp"], ddp_options(recipe));
  dtensor::materialize(
      *job.model,
      static_cast<uint64_t>(recipe.seed),
      device.value_or(mesh.world().device()));
  if (auto hook = make_comm_hook(recipe.ddp)) {
    job.loss_scale = static_cast<double>(mesh.size("dp"));
    job.ddp->register_comm_hook(std::move(hook));
  }
  recompute_activations(recipe, *job.model);
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

int64_t targets_per_step(const Recipe& recipe) {
  const int64_t samples = recipe.train.global_batch_size;
  return recipe.data.type == "text" ? samples * recipe.data.sequence_length
                                    : samples;
}

at::Tensor token_loss(
    const at::Tensor& logits,
    const at::Tensor& targets,
    int64_t targets_in_all) {
  return summed_loss(logits, targets) / static_cast<double>(targets_in_all);
}

at::Tensor training_loss(
    const Recipe& recipe,
    Model& model,
    const at::Tensor& logits,
    const at::Tensor& targets) {
  const auto loss = summed_loss(
                        logits,
                        targets,
                        {.label_smoothing = recipe.train.label_smoothing,
                         .z_loss = recipe.train.z_loss}) /
                    static_cast<double>(targets_per_step(recipe));
  const auto auxiliary = model.auxiliary_loss();
  return auxiliary.defined()
             ? loss + auxiliary /
                          static_cast<double>(recipe.train.global_batch_size)
             : loss;
}

} // namespace weft::recipes
