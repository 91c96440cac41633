#include "train/setup/ddp_config.h"

#include <optional>
#include <string>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "data_parallel/comm_hooks/power_sgd_hook.h"
#include "data_parallel/comm_hooks/quantization_hooks.h"

namespace weft::train {
namespace {

ddp::BucketMode bucket_mode(config::BucketMode mode) {
  switch (mode) {
    case config::BucketMode::kCoalesced:
      return ddp::BucketMode::kCoalesced;
    case config::BucketMode::kPerParameter:
      return ddp::BucketMode::kPerParameter;
    case config::BucketMode::kConcatenated:
      break;
  }
  return ddp::BucketMode::kConcatenated;
}

c10::ScalarType compute_dtype(const config::Recipe& recipe) {
  const auto own = recipe.mesh.is_sharded() ? recipe.fsdp.param_dtype
                                            : recipe.ddp.param_dtype;
  return own == config::ParamDtype::kBFloat16 ||
                 recipe.train.dtype == config::TrainDtype::kBFloat16
             ? at::kBFloat16
             : at::kFloat;
}

std::shared_ptr<data_parallel::CommHook> ddp_hook(
    const config::DdpConfig& ddp) {
  using config::DdpCommHook;
  const data_parallel::PowerSGDOptions power_sgd{
      .matrix_approximation_rank = ddp.power_sgd_rank,
      .start_powerSGD_iter = ddp.power_sgd_start_iter};
  switch (ddp.comm_hook) {
    case DdpCommHook::kNone:
      break;
    case DdpCommHook::kBf16Compress:
      return data_parallel::bf16_compress_hook();
    case DdpCommHook::kFp16Compress:
      return data_parallel::fp16_compress_hook();
    case DdpCommHook::kQuantizationPerTensor:
      return data_parallel::quantization_pertensor_hook();
    case DdpCommHook::kQuantizationPerChannel:
      return data_parallel::quantization_perchannel_hook();
    case DdpCommHook::kPowerSgd:
      return std::make_shared<data_parallel::PowerSGDHook>(power_sgd);
    case DdpCommHook::kBatchedPowerSgd:
      return std::make_shared<data_parallel::BatchedPowerSGDHook>(power_sgd);
  }
  return nullptr;
}

std::shared_ptr<data_parallel::CommHook> fsdp_hook(
    const config::FsdpConfig& fsdp) {
  using config::FsdpCommHook;
  switch (fsdp.comm_hook) {
    case FsdpCommHook::kNone:
      break;
    case FsdpCommHook::kBf16Compress:
      return data_parallel::bf16_compress_hook();
    case FsdpCommHook::kFp16Compress:
      return data_parallel::fp16_compress_hook();
  }
  return nullptr;
}

} // namespace

std::optional<c10::ScalarType> reduce_dtype(config::ReduceDtype dtype) {
  switch (dtype) {
    case config::ReduceDtype::kNone:
      return std::nullopt;
    case config::ReduceDtype::kFloat32:
      return at::kFloat;
    case config::ReduceDtype::kBFloat16:
      break;
  }
  return at::kBFloat16;
}

std::optional<c10::ScalarType> param_dtype(const config::Recipe& recipe) {
  const auto dtype = compute_dtype(recipe);
  return dtype == at::kFloat ? std::nullopt : std::optional(dtype);
}

ddp::DistributedDataParallelOptions ddp_options(const config::Recipe& recipe) {
  const auto& config = recipe.ddp;
  ddp::DistributedDataParallelOptions options;
  options.bucket_cap_mb = config.bucket_cap_mb;
  options.reduce_op = config.comm_hook == config::DdpCommHook::kNone
                          ? mesh::ReduceOp::kSum
                          : mesh::ReduceOp::kAvg;
  // The only buffers of a model are the rotary tables, which are constant.
  options.forward_sync_buffers = false;
  options.bucket_mode = bucket_mode(config.bucket_mode);
  options.auto_bucketing = config.auto_bucketing;
  options.gradient_as_bucket_view = config.gradient_as_bucket_view;
  options.batched_grad_copy = config.batched_grad_copy;
  options.static_graph = config.static_graph;
  options.check_for_nan_in_grad = config.check_for_nan_in_grad;
  const auto computed_in = param_dtype(recipe);
  const auto reduced_in = reduce_dtype(config.reduce_dtype);
  if (computed_in || reduced_in) {
    options.mixed_precision = ddp::MixedPrecision{
        .param_dtype = computed_in, .reduce_dtype = reduced_in};
  }
  return options;
}

std::shared_ptr<data_parallel::CommHook> make_comm_hook(
    const config::Recipe& recipe) {
  return recipe.mesh.is_sharded() ? fsdp_hook(recipe.fsdp)
                                  : ddp_hook(recipe.ddp);
}

} // namespace weft::train
