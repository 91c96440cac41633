#include "ddp/reducer/logging_data.h"

#include <cstdio>
#include <set>
#include <unordered_map>

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "data_parallel/parameters/parameter_owners.h"
#include "ddp/batch_norm/sync_batch_norm.h"
#include "ddp/reducer/bucket_plan.h"
#include "dtensor/scopes/module_call.h"
#include "dtensor/tensor/dtensor_impl.h"
#include "mesh/bootstrap/debug_level.h"
#include "mesh/bootstrap/env.h"
#include "mesh/bootstrap/rank_logger.h"
#include "mesh/error/error.h"

namespace weft::ddp {
namespace {

using nlohmann::ordered_json;

ordered_json to_value(const std::optional<std::string>& text) {
  return text ? ordered_json(*text) : ordered_json(nullptr);
}

ordered_json to_value(const std::optional<int64_t>& number) {
  return number ? ordered_json(*number) : ordered_json(nullptr);
}

template <class T>
ordered_json to_value(const T& value) {
  return ordered_json(value);
}

#define WEFT_FIELD(name) \
  { #name, to_value(data.name) }

ordered_json construction_of(const DDPLoggingData& data) {
  return {
      WEFT_FIELD(module_name),
      WEFT_FIELD(world_size),
      WEFT_FIELD(rank),
      WEFT_FIELD(iteration),
      WEFT_FIELD(dtypes),
      WEFT_FIELD(num_parameter_tensors),
      WEFT_FIELD(total_parameter_size_bytes),
      WEFT_FIELD(bucket_sizes),
      WEFT_FIELD(bucket_cap_bytes),
      WEFT_FIELD(device_ids),
      WEFT_FIELD(output_device),
      WEFT_FIELD(broadcast_buffers),
      WEFT_FIELD(find_unused_parameters),
      WEFT_FIELD(gradient_as_bucket_view),
      WEFT_FIELD(static_graph),
      WEFT_FIELD(backend_name),
      WEFT_FIELD(has_sync_bn),
      WEFT_FIELD(is_multi_device_module),
      WEFT_FIELD(gloo_num_threads),
  };
}

ordered_json environment_of(const DDPLoggingData& data) {
  return {
      WEFT_FIELD(master_port),
      WEFT_FIELD(master_addr),
      WEFT_FIELD(torch_distributed_debug),
      WEFT_FIELD(cuda_visible_devices),
      WEFT_FIELD(gloo_socket_ifname),
      WEFT_FIELD(gloo_device_transport),
      WEFT_FIELD(nccl_socket_ifname),
      WEFT_FIELD(nccl_blocking_wait),
      WEFT_FIELD(nccl_async_error_handling),
      WEFT_FIELD(nccl_debug),
      WEFT_FIELD(nccl_nthreads),
      WEFT_FIELD(nccl_ib_timeout),
  };
}

ordered_json runtime_of(const DDPLoggingData& data) {
  return {
      WEFT_FIELD(unused_parameter_size),
      WEFT_FIELD(num_buckets_reduced),
      WEFT_FIELD(has_rebuilt_buckets),
      WEFT_FIELD(rebuilt_bucket_sizes),
      WEFT_FIELD(rebuilt_per_bucket_param_indices),
      WEFT_FIELD(prev_iteration_grad_ready_order_indices),
      WEFT_FIELD(forward_compute_time),
      WEFT_FIELD(forward_compute_time_start),
      WEFT_FIELD(backward_compute_time),
      WEFT_FIELD(backward_compute_time_start),
      WEFT_FIELD(backward_compute_time_end),
      WEFT_FIELD(backward_comm_time),
      WEFT_FIELD(backward_comm_time_start),
      WEFT_FIELD(backward_comm_time_end),
      WEFT_FIELD(backward_compute_comm_overlap_time),
      WEFT_FIELD(avg_forward_compute_time),
      WEFT_FIELD(avg_backward_compute_time),
      WEFT_FIELD(avg_backward_comm_time),
      WEFT_FIELD(avg_backward_compute_comm_overlap_time),
      WEFT_FIELD(comm_hook),
      WEFT_FIELD(join_uneven_inputs),
      WEFT_FIELD(can_set_static_graph),
      WEFT_FIELD(has_error),
      WEFT_FIELD(error),
  };
}

#undef WEFT_FIELD

std::string dump(const ordered_json& json) {
  return base::json_text(json);
}

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(data_parallel::local_part(tensor).nbytes());
}

void describe_parameters(
    const std::vector<data_parallel::NamedTensor>& parameters,
    DDPLoggingData& data) {
  std::set<std::string> dtypes;
  std::set<std::string> devices;
  for (const auto& item : parameters) {
    data.total_parameter_size_bytes += bytes_of(item.tensor);
    dtypes.emplace(c10::toString(item.tensor.scalar_type()));
    devices.insert(data_parallel::local_part(item.tensor).device().str());
  }
  data.num_parameter_tensors = static_cast<int64_t>(parameters.size());
  data.dtypes = {dtypes.begin(), dtypes.end()};
  data.is_multi_device_module = devices.size() > 1;
}

void describe_environment(DDPLoggingData& data) {
  data.master_port = mesh::env::get("MASTER_PORT");
  data.master_addr = mesh::env::get("MASTER_ADDR");
  data.torch_distributed_debug = mesh::env::get("TORCH_DISTRIBUTED_DEBUG");
  data.cuda_visible_devices = mesh::env::get("CUDA_VISIBLE_DEVICES");
  data.gloo_socket_ifname = mesh::env::get("GLOO_SOCKET_IFNAME");
  data.gloo_device_transport = mesh::env::get("GLOO_DEVICE_TRANSPORT");
  data.nccl_socket_ifname = mesh::env::get("NCCL_SOCKET_IFNAME");
  data.nccl_blocking_wait = mesh::env::get("NCCL_BLOCKING_WAIT");
  data.nccl_async_error_handling = mesh::env::get("NCCL_ASYNC_ERROR_HANDLING");
  data.nccl_debug = mesh::env::get("NCCL_DEBUG");
  data.nccl_nthreads = mesh::env::get("NCCL_NTHREADS");
  data.nccl_ib_timeout = mesh::env::get("NCCL_IB_TIMEOUT");
}

std::unordered_map<std::string, size_t> places_of(
    const std::vector<data_parallel::NamedTensor>& parameters) {
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    places.emplace(parameters[i].name, i);
  }
  return places;
}

// Writes the line in one call, so that ranks that share a terminal do not mix
// their lines.
void log(
    const DDPLoggingData& data,
    const char* what,
    const ordered_json& json) {
  mesh::rank_logger(data.rank).info(
      mesh::detail::concat("ddp ", what, ": ", dump(json)));
}

} // namespace

std::string to_json(const DDPLoggingData& data) {
  auto json = construction_of(data);
  json.update(environment_of(data));
  json.update(runtime_of(data));
  return dump(json);
}

DDPLoggingData describe_construction(
    const torch::nn::Module& module,
    const std::vector<data_parallel::NamedTensor>& parameters,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options) {
  DDPLoggingData data;
  const auto& group = dp.group(int64_t{0});
  data.module_name = dtensor::module_type_name(module);
  data.world_size = group.size();
  data.rank = group.rank();
  describe_parameters(parameters, data);
  data.bucket_cap_bytes = bucket_caps(options.bucket_cap_mb).rest;
  const auto device =
      parameters.empty()
          ? c10::Device(c10::kCPU)
          : data_parallel::local_part(parameters[0].tensor).device();
  if (!device.is_cpu() && !data.is_multi_device_module) {
    data.device_ids = {device.index()};
    data.output_device = device.index();
  }
  data.broadcast_buffers = syncs_buffers_in_forward(options);
  data.find_unused_parameters = options.find_unused_parameters;
  data.gradient_as_bucket_view = options.gradient_as_bucket_view;
  data.static_graph = options.static_graph;
  data.has_sync_bn = !sync_batch_norm_groups(module).empty();
  data.backend_name = group.backend();
  describe_environment(data);
  return data;
}

std::vector<std::vector<size_t>> bucket_indices(
    const std::vector<std::vector<std::string>>& buckets,
    const std::vector<data_parallel::NamedTensor>& parameters) {
  const auto places = places_of(parameters);
  std::vector<std::vector<size_t>> indices;
  for (const auto& bucket : buckets) {
    auto& places_in_bucket = indices.emplace_back();
    for (const auto& name : bucket) {
      const auto found = places.find(name);
      TORCH_INTERNAL_ASSERT(found != places.end(), name);
      places_in_bucket.push_back(found->second);
    }
  }
  return indices;
}

void log_construction(const DDPLoggingData& data) {
  if (mesh::get_debug_level() != mesh::DebugLevel::kOff) {
    auto json = construction_of(data);
    json.update(environment_of(data));
    log(data, "set up", json);
  }
}

void log_iteration(const DDPLoggingData& data) {
  if (mesh::get_debug_level() == mesh::DebugLevel::kDetail) {
    auto json = runtime_of(data);
    json.erase("rebuilt_per_bucket_param_indices");
    json.erase("prev_iteration_grad_ready_order_indices");
    log(data, mesh::detail::concat("iteration ", data.iteration).c_str(), json);
  }
}

} // namespace weft::ddp
