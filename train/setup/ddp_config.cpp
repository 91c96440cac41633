#include "train/setup/ddp_config.h"

#include <optional>
#include <string>

#include "data_parallel/comm_hooks/default_hooks.h"
#include "data_parallel/comm_hooks/power_sgd_hook.h"
#include "data_parallel/comm_hooks/quantization_hooks.h"

namespace weft::train {
namespace {

ddp::BucketMode mode_of(const std::string& name) {
  if (name == "coalesced") {
    return ddp::BucketMode::kCoalesced;
  }
  return name == "per_parameter" ? ddp::BucketMode::kPerParameter
                                 : ddp::BucketMode::kConcatenated;
}

} // namespace

std::optional<c10::ScalarType> dtype_of(const std::string& name) {
  if (name == "none") {
    return std::nullopt;
  }
  return name == "float32" ? at::kFloat : at::kBFloat16;
}

std::optional<c10::ScalarType> param_dtype(const config::Recipe& recipe) {
  const auto& own = recipe.mesh.is_sharded() ? recipe.fsdp.param_dtype
                                             : recipe.ddp.param_dtype;
  const auto dtype = dtype_of(own == "none" ? recipe.train.dtype : own);
  return dtype == at::kFloat ? std::nullopt : dtype;
}

ddp::DistributedDataParallelOptions ddp_options(const config::Recipe& recipe) {
  const auto& config = recipe.ddp;
  ddp::DistributedDataParallelOptions options;
  options.bucket_cap_mb = config.bucket_cap_mb;
  options.reduce_op =
      config.comm_hook == "none" ? mesh::ReduceOp::kSum : mesh::ReduceOp::kAvg;
  // The rotary tables are its only buffers, and constants.
  options.forward_sync_buffers = false;
  options.bucket_mode = mode_of(config.bucket_mode);
  options.auto_bucketing = config.auto_bucketing;
  options.gradient_as_bucket_view = config.gradient_as_bucket_view;
  options.batched_grad_copy = config.batched_grad_copy;
  options.static_graph = config.static_graph;
  options.check_for_nan_in_grad = config.check_for_nan_in_grad;
  const auto computed_in = param_dtype(recipe);
  const auto reduced_in = dtype_of(config.reduce_dtype);
  if (computed_in || reduced_in) {
    options.mixed_precision = ddp::MixedPrecision{
        .param_dtype = computed_in, .reduce_dtype = reduced_in};
  }
  return options;
}

std::shared_ptr<data_parallel::CommHook> make_comm_hook(
    const config::Recipe& recipe) {
  const auto& config = recipe.ddp;
  const data_parallel::PowerSGDOptions power_sgd{
      .matrix_approximation_rank = config.power_sgd_rank,
      .start_powerSGD_iter = config.power_sgd_start_iter};
  const auto& name =
      recipe.mesh.is_sharded() ? recipe.fsdp.comm_hook : config.comm_hook;
  if (name == "bf16_compress") {
    return data_parallel::bf16_compress_hook();
  }
  if (name == "fp16_compress") {
    return data_parallel::fp16_compress_hook();
  }
  if (name == "quantization_pertensor") {
    return data_parallel::quantization_pertensor_hook();
  }
  if (name == "quantization_perchannel") {
    return data_parallel::quantization_perchannel_hook();
  }
  if (name == "powersgd") {
    return std::make_shared<data_parallel::PowerSGDHook>(power_sgd);
  }
  if (name == "batched_powersgd") {
    return std::make_shared<data_parallel::BatchedPowerSGDHook>(power_sgd);
  }
  return nullptr;
}

} // namespace weft::train
