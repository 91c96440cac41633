#include "tests/ddp/harness/training.h"

#include <utility>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "ddp/distributed_data_parallel.h"
#include "dtensor/init/deferred_init.h"
#include "dtensor/tensor/dtensor.h"
#include "tests/ddp/harness/mixture_of_experts.h"
#include "tests/ddp/harness/nested_wrapped_module.h"
#include "tests/ddp/harness/transformer.h"

namespace weft::test {
namespace {

using HarnessPointer = std::shared_ptr<HarnessModel>;

at::Tensor whole_copy(const at::Tensor& tensor) {
  const auto detached = tensor.detach();
  return dtensor::is_dtensor(detached) ? dtensor::full_tensor(detached).clone()
                                       : detached.clone();
}

/// Gives a model that was made under DeferredInit its places, and the values of
/// `plain`.
void place_harness(HarnessModel& model, const HarnessModel& plain) {
  const auto parameters = harness_parameters(model);
  for (const auto& [name, parameter] : parameters) {
    dtensor::set_placements(parameter, *model.tp, {model.placement_of(name)});
  }
  for (const auto& buffer : model.buffers()) {
    dtensor::set_placements(buffer, *model.tp, {dtensor::Replicate()});
  }
  dtensor::materialize(model, /*seed=*/1);
  const auto values = harness_parameters(plain);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < values.size(); ++i) {
    parameters[i].second.copy_(dtensor::distribute_tensor(
        values[i].second.detach(),
        *model.tp,
        {model.placement_of(values[i].first)},
        std::nullopt));
  }
}

HarnessPointer make_unwrapped(HarnessKind kind, const mesh::DeviceMesh& mesh) {
  const auto dp = mesh["dp"];
  const auto channel = kind == HarnessKind::kTransformerWithSyncBatchNorm
                           ? ddp::make_sync_batch_norm_group(dp)
                           : nullptr;
  const auto construct = [&] {
    auto model = construct_harness(kind, dp.size(), &dp, channel);
    model->to(at::kDouble);
    return model;
  };
  const auto plain = construct();
  fill_harness(*plain);
  if (mesh.size("tp") == 1) {
    return plain;
  }
  HarnessPointer model;
  {
    const dtensor::DeferredInit scope;
    model = construct();
  }
  model->tp = mesh["tp"];
  place_harness(*model, *plain);
  return model;
}

HarnessModel::Inputs
whole_batch(const HarnessModel& model, int64_t replicas, int64_t step) {
  auto whole = model.get_input(0, step);
  for (int64_t rank = 1; rank < replicas; ++rank) {
    const auto more = model.get_input(rank, step);
    for (size_t i = 0; i < whole.size(); ++i) {
      whole[i] = at::cat({whole[i], more[i]});
    }
  }
  return whole;
}

/// Forward and backward of one replica after the other; buffers become the
/// first one's. Returns the mean of the losses.
double
run_replicas_in_turn(HarnessModel& model, int64_t replicas, int64_t step) {
  std::vector<at::Tensor> before, after_first;
  for (const auto& buffer : model.buffers()) {
    before.push_back(buffer.clone());
  }
  const auto set_buffers = [&](const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    const auto buffers = model.buffers();
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].copy_(values[i]);
    }
  };
  double sum = 0;
  for (int64_t rank = 0; rank < replicas; ++rank) {
    set_buffers(before);
    const auto inputs = model.get_input(rank, step);
    const auto loss = model.get_loss(inputs, model.forward(inputs));
    (loss / static_cast<double>(replicas)).backward();
    sum += loss.item<double>();
    if (rank == 0) {
      for (const auto& buffer : model.buffers()) {
        after_first.push_back(buffer.clone());
      }
    }
  }
  set_buffers(after_first);
  return sum / static_cast<double>(replicas);
}

} // namespace

torch::optim::SGDOptions harness_sgd() {
  return torch::optim::SGDOptions(0.05).momentum(0.9);
}

HarnessPointer construct_harness(
    HarnessKind kind,
    int64_t replicas,
    const mesh::DeviceMesh* dp,
    const std::shared_ptr<ddp::SyncBatchNormGroup>& channel) {
  using Norm = TransformerWithSharedParams::Norm;
  using Wrap = NestedWrappedModule::Wrap;
  switch (kind) {
    case HarnessKind::kTransformer:
      return std::make_shared<TransformerWithSharedParams>();
    case HarnessKind::kTransformerWithBatchNorm:
      return std::make_shared<TransformerWithSharedParams>(Norm::kBatchNorm);
    case HarnessKind::kTransformerWithSyncBatchNorm:
      return std::make_shared<TransformerWithSharedParams>(
          channel ? Norm::kSyncBatchNorm : Norm::kBatchNorm, channel);
    case HarnessKind::kNested:
      return std::make_shared<NestedWrappedModule>(Wrap::kSome);
    case HarnessKind::kAlwaysNested:
      return std::make_shared<NestedWrappedModule>(Wrap::kAll);
    case HarnessKind::kMixtureOfExperts:
      break;
  }
  return dp ? std::make_shared<MixtureOfExperts>(*dp)
            : std::make_shared<MixtureOfExperts>(replicas);
}

HarnessTrace trace_of_harness(
    const HarnessModel& model,
    std::vector<double> losses) {
  HarnessTrace trace{std::move(losses), {}, {}};
  for (const auto& [name, parameter] : harness_parameters(model)) {
    trace.parameters[model.name_in_twin(name)] = whole_copy(parameter);
  }
  for (const auto& buffer : model.named_buffers()) {
    trace.buffers[model.name_in_twin(buffer.key())] =
        whole_copy(buffer.value());
  }
  return trace;
}

const char* name_of(HarnessKind kind) {
  switch (kind) {
    case HarnessKind::kTransformer:
      return "Transformer";
    case HarnessKind::kTransformerWithBatchNorm:
      return "TransformerWithBatchNorm";
    case HarnessKind::kTransformerWithSyncBatchNorm:
      return "TransformerWithSyncBatchNorm";
    case HarnessKind::kNested:
      return "Nested";
    case HarnessKind::kAlwaysNested:
      return "AlwaysNested";
    case HarnessKind::kMixtureOfExperts:
      return "MixtureOfExperts";
  }
  return "";
}

std::shared_ptr<HarnessModel> make_harness_model(
    HarnessKind kind,
    const mesh::DeviceMesh& mesh,
    const ddp::DistributedDataParallelOptions& options,
    const std::optional<HarnessDelays>& delays) {
  auto model = make_unwrapped(kind, mesh);
  model->wrap(mesh["dp"], options);
  if (!delays) {
    return model;
  }
  const auto rank = static_cast<uint64_t>(mesh.rank());
  return std::make_shared<ModuleWithDelay>(
      std::move(model),
      HarnessDelays{delays->seed * 1000 + rank, delays->max_ms});
}

std::shared_ptr<HarnessModel> make_harness_twin(
    HarnessKind kind,
    int64_t replicas) {
  auto twin = construct_harness(kind, replicas, nullptr, nullptr);
  twin->to(at::kDouble);
  fill_harness(*twin);
  return twin;
}

ddp::DistributedDataParallelOptions outer_options(
    const HarnessModel& model,
    ddp::DistributedDataParallelOptions options) {
  options.params_and_buffers_to_ignore = model.wrapped_names();
  options.parameter_groups = model.parameter_groups();
  return options;
}

HarnessTrace train_harness(
    const HarnessRun& run,
    const mesh::DeviceMesh& mesh,
    int64_t steps) {
  const auto model =
      make_harness_model(run.kind, mesh, run.options, run.delays);
  std::unique_ptr<ddp::DistributedDataParallel<HarnessModel>> ddp;
  if (model->wrapped_names().size() < harness_parameters(*model).size()) {
    ddp = std::make_unique<ddp::DistributedDataParallel<HarnessModel>>(
        model, mesh["dp"], outer_options(*model, run.options));
    if (run.delays) {
      const auto seed = run.delays->seed * 2000 + mesh.rank();
      ddp->register_comm_hook(delayed_hook(
          data_parallel::all_reduce_by_sum(), {seed, run.delays->max_ms}));
    }
  }
  torch::optim::SGD optimizer(harness_tensors(*model), harness_sgd());
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto inputs = model->get_input(mesh.coordinate("dp"), step);
    const auto output = ddp ? (*ddp)(inputs) : model->forward(inputs);
    const auto loss = model->get_loss(inputs, output);
    model->run_backward(loss);
    optimizer.step();
    const auto mean = loss.detach().clone();
    mesh.group("dp").all_reduce(mean, mesh::ReduceOp::kAvg).wait();
    losses.push_back(mean.item<double>());
  }
  return trace_of_harness(*model, std::move(losses));
}

HarnessTrace
train_harness_twin(HarnessKind kind, int64_t replicas, int64_t steps) {
  const auto twin = make_harness_twin(kind, replicas);
  // Batch norm of all rows is what SyncBatchNorm is.
  const bool at_once = twin->treats_rows_alone() ||
                       kind == HarnessKind::kTransformerWithSyncBatchNorm;
  torch::optim::SGD optimizer(harness_tensors(*twin), harness_sgd());
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    if (at_once) {
      const auto inputs = whole_batch(*twin, replicas, step);
      const auto loss = twin->get_loss(inputs, twin->forward(inputs));
      twin->run_backward(loss);
      losses.push_back(loss.item<double>());
    } else {
      losses.push_back(run_replicas_in_turn(*twin, replicas, step));
    }
    optimizer.step();
  }
  return trace_of_harness(*twin, std::move(losses));
}

} // namespace weft::test
