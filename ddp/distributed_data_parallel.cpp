#include "ddp/distributed_data_parallel.h"

#include <algorithm>

#include <torch/torch.h>

#include "ddp/bucket_plan.h"
#include "ddp/module_state.h"
#include "ddp/reducer.h"
#include "ddp/replicas.h"
#include "dtensor/deferred_init.h"
#include "dtensor/dtensor.h"
#include "dtensor/dtensor_impl.h"
#include "mesh/error.h"

namespace weft::ddp {
namespace {

using mesh::ReduceOp;

mesh::ErrorContext where(const mesh::DeviceMesh& dp) {
  return {dp.describe_rank()};
}

std::vector<NamedTensor> trainable(const std::vector<NamedTensor>& all) {
  std::vector<NamedTensor> result;
  std::copy_if(
      all.begin(), all.end(), std::back_inserter(result), [](const auto& item) {
        return item.tensor.requires_grad();
      });
  return result;
}

/// The first tensor that has no values yet, or null.
const NamedTensor* find_deferred(const std::vector<NamedTensor>& tensors) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [](const auto& item) {
        return dtensor::is_deferred(item.tensor);
      });
  return found == tensors.end() ? nullptr : &*found;
}

/// A parameter may not lie on the mesh over which it is replicated.
void check_meshes(
    const std::vector<NamedTensor>& tensors,
    const mesh::DeviceMesh& dp) {
  for (const auto& item : tensors) {
    const auto* impl = dtensor::dtensor_impl(item.tensor);
    if (!impl || impl->spec().mesh_ndim() == 0) {
      continue;
    }
    for (const auto rank : impl->spec().mesh().ranks()) {
      const auto& replicas = dp.ranks();
      WEFT_CHECK(
          rank == dp.rank() ||
              std::find(replicas.begin(), replicas.end(), rank) ==
                  replicas.end(),
          "ddp",
          where(dp),
          item.name,
          " is ",
          dtensor::describe(item.tensor),
          ", whose mesh holds ranks of the replicas' mesh ",
          dp.to_string(),
          ". Parallelize the model over other mesh dims than the replicas'.");
    }
  }
}

void check_arguments(
    const torch::nn::Module* module,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options) {
  WEFT_CHECK(
      dp.ndim() == 1,
      "ddp",
      where(dp),
      "mesh of 1 dim: ",
      dp.ndim(),
      " given. Pass the replicas' dim alone, e.g. mesh[\"dp\"].");
  WEFT_CHECK(
      module != nullptr, "ddp", where(dp), "the module is null. Pass a model.");
  WEFT_CHECK(
      options.reduce_op == ReduceOp::kAvg ||
          options.reduce_op == ReduceOp::kSum,
      "ddp",
      where(dp),
      "reduce_op must be kAvg or kSum: gradients of replicas add up.");
}

} // namespace

struct DistributedDataParallelBase::State {
  std::shared_ptr<torch::nn::Module> module;
  mesh::DeviceMesh dp;
  DistributedDataParallelOptions options;
  BucketCaps caps;
  std::shared_ptr<std::atomic<int>> paused =
      std::make_shared<std::atomic<int>>(0);
  /// Parameters that were frozen when the reducer was made.
  std::vector<NamedTensor> frozen;
  /// Null until the parameters have values.
  std::shared_ptr<Reducer> reducer;

  void check_frozen() const;
  void broadcast_buffers() const;
};

DistributedDataParallelBase::DistributedDataParallelBase(
    std::shared_ptr<torch::nn::Module> module,
    const mesh::DeviceMesh& dp_mesh,
    const DistributedDataParallelOptions& options) {
  check_arguments(module.get(), dp_mesh, options);
  const auto parameters = parameters_of(*module);
  WEFT_CHECK(
      !trainable(parameters).empty(),
      "ddp",
      where(dp_mesh),
      "none of the module's ",
      parameters.size(),
      " parameters requires a gradient: nothing to reduce. Wrap a model that "
      "trains, or call the module itself.");
  const bool is_deferred =
      find_deferred(parameters) || find_deferred(buffers_of(*module));
  state_.reset(new State{
      .module = std::move(module),
      .dp = dp_mesh,
      .options = options,
      .caps = bucket_caps(options.bucket_cap_mb),
      .frozen = {},
      .reducer = {}});
  if (!is_deferred) {
    synchronize_parameters();
  }
}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

NoSyncGuard DistributedDataParallelBase::no_sync() {
  return NoSyncGuard(state_->paused);
}

const mesh::DeviceMesh& DistributedDataParallelBase::mesh() const {
  return state_->dp;
}

void DistributedDataParallelBase::synchronize_parameters() {
  auto& state = *state_;
  if (state.reducer) {
    return;
  }
  const auto parameters = parameters_of(*state.module);
  const auto buffers = buffers_of(*state.module);
  auto all = parameters;
  all.insert(all.end(), buffers.begin(), buffers.end());
  if (const auto* deferred = find_deferred(all)) {
    WEFT_CHECK(
        false,
        "ddp",
        where(state.dp),
        deferred->name,
        " has no values yet. Call weft::dtensor::materialize(model, seed) "
        "before the first forward.");
  }
  check_meshes(all, state.dp);
  if (state.options.init_sync) {
    check_replicas_agree(parameters, buffers, state.dp);
    broadcast_from_first(all, state.dp, "ddp initial values");
  }
  for (const auto& item : parameters) {
    if (!item.tensor.requires_grad()) {
      state.frozen.push_back(item);
    }
  }
  const ReducerOptions options{
      .caps = state.caps,
      .gradient_as_bucket_view = state.options.gradient_as_bucket_view,
      .reduce_op = state.options.reduce_op};
  state.reducer =
      Reducer::create(trainable(parameters), state.dp, options, state.paused);
}

void DistributedDataParallelBase::State::check_frozen() const {
  for (const auto& item : frozen) {
    WEFT_CHECK(
        !item.tensor.requires_grad(),
        "ddp",
        where(dp),
        item.name,
        " was frozen when the model was wrapped and requires a gradient now, "
        "which nobody would reduce. Wrap the model again.");
  }
}

void DistributedDataParallelBase::State::broadcast_buffers() const {
  if (options.forward_sync_buffers.value_or(
          options.broadcast_buffers.value_or(true)) &&
      module->is_training() && at::GradMode::is_enabled() && *paused == 0 &&
      dp.size() > 1) {
    const auto buffers = buffers_of(*module);
    if (!buffers.empty()) {
      broadcast_from_first(buffers, dp, "ddp buffers");
    }
  }
}

void DistributedDataParallelBase::before_forward() {
  synchronize_parameters();
  state_->reducer->reset();
  state_->check_frozen();
  state_->broadcast_buffers();
}

void DistributedDataParallelBase::after_forward(const at::Tensor& output) {
  state_->reducer->watch(output);
}

void DistributedDataParallelBase::after_forward(
    const std::vector<at::Tensor>& outputs) {
  for (const auto& output : outputs) {
    state_->reducer->watch(output);
  }
}

std::vector<std::vector<std::string>>
DistributedDataParallelBase::bucket_names() const {
  WEFT_CHECK(
      state_->reducer != nullptr,
      "ddp",
      where(state_->dp),
      "no buckets before the parameters have values. Call "
      "synchronize_parameters() after materialize().");
  return state_->reducer->bucket_names();
}

void DistributedDataParallelBase::set_bucket_layout(
    const std::vector<std::vector<std::string>>& layout) {
  synchronize_parameters();
  state_->reducer->set_bucket_layout(layout);
}

dtensor::StateDict DistributedDataParallelBase::state_dict(
    const std::set<std::string>& ignore) const {
  const auto joint = dtensor::joint_mesh(*state_->module, state_->dp);
  return dtensor::module_state_dict(*state_->module, joint, ignore);
}

dtensor::StateDict DistributedDataParallelBase::optimizer_state_dict(
    torch::optim::Optimizer& optimizer) const {
  const auto joint = dtensor::joint_mesh(*state_->module, state_->dp);
  return dtensor::optimizer_state_dict(optimizer, *state_->module, joint);
}

void DistributedDataParallelBase::load_optimizer_state_dict(
    torch::optim::Optimizer& optimizer,
    const dtensor::StateDict& state) const {
  dtensor::load_optimizer_state_dict(optimizer, *state_->module, state);
}

} // namespace weft::ddp
