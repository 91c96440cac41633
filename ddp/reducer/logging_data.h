#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data_parallel/parameters/module_state.h"
#include "ddp/reducer/options.h"
#include "mesh/device_mesh.h"

namespace weft::ddp {

/// The statistics of DDP under PyTorch's names. Lists are lists, where PyTorch
/// has strings, and an unset variable is empty instead of "N/A".
/// Units: bytes; nanoseconds, with points in time on the monotonic clock, as in
/// a flight recorder. Times are those of the last sampled iteration, 0 if not
/// measured.
/// Source: torch/csrc/distributed/c10d/logger.cpp.
struct DDPLoggingData {
  // Known from construction on.

  std::string module_name;
  int64_t world_size = 0;
  int64_t rank = 0;
  /// The last sampled iteration, counted from 1. 0 before the first.
  int64_t iteration = 0;
  std::vector<std::string> dtypes;
  int64_t num_parameter_tensors = 0;
  int64_t total_parameter_size_bytes = 0;
  std::vector<int64_t> bucket_sizes;
  int64_t bucket_cap_bytes = 0;
  /// Empty on the CPU.
  std::vector<int64_t> device_ids;
  int64_t output_device = -1;
  bool broadcast_buffers = false;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  std::string backend_name;
  /// True if the model has SyncBatchNorm layers.
  bool has_sync_bn = false;
  bool is_multi_device_module = false;
  /// Empty if the group does not report it.
  std::optional<int64_t> gloo_num_threads;

  // The environment.

  std::optional<std::string> master_port;
  std::optional<std::string> master_addr;
  std::optional<std::string> torch_distributed_debug;
  std::optional<std::string> cuda_visible_devices;
  std::optional<std::string> gloo_socket_ifname;
  std::optional<std::string> gloo_device_transport;
  std::optional<std::string> nccl_socket_ifname;
  std::optional<std::string> nccl_blocking_wait;
  std::optional<std::string> nccl_async_error_handling;
  std::optional<std::string> nccl_debug;
  std::optional<std::string> nccl_nthreads;
  std::optional<std::string> nccl_ib_timeout;

  // Known once it runs.

  int64_t unused_parameter_size = 0;
  int64_t num_buckets_reduced = 0;
  bool has_rebuilt_buckets = false;
  std::vector<int64_t> rebuilt_bucket_sizes;
  std::vector<std::vector<size_t>> rebuilt_per_bucket_param_indices;
  std::vector<size_t> prev_iteration_grad_ready_order_indices;
  int64_t forward_compute_time = 0;
  int64_t forward_compute_time_start = 0;
  int64_t backward_compute_time = 0;
  int64_t backward_compute_time_start = 0;
  int64_t backward_compute_time_end = 0;
  int64_t backward_comm_time = 0;
  int64_t backward_comm_time_start = 0;
  int64_t backward_comm_time_end = 0;
  int64_t backward_compute_comm_overlap_time = 0;
  int64_t avg_forward_compute_time = 0;
  int64_t avg_backward_compute_time = 0;
  int64_t avg_backward_comm_time = 0;
  int64_t avg_backward_compute_comm_overlap_time = 0;
  /// Empty without a hook.
  std::string comm_hook;
  bool join_uneven_inputs = false;
  /// True if the same parameters got gradients in all iterations so far.
  bool can_set_static_graph = false;
  bool has_error = false;
  std::string error;
};

/// Returns the data as one line of JSON with the fields in order; null for an
/// unset variable.
std::string to_json(const DDPLoggingData& data);

/// Returns what is known at construction: the model, the mesh, the options and
/// the environment. `parameters` are those to be reduced; bucket_sizes stays
/// empty.
DDPLoggingData describe_construction(
    const torch::nn::Module& module,
    const std::vector<data_parallel::NamedTensor>& parameters,
    const mesh::DeviceMesh& dp,
    const DistributedDataParallelOptions& options);

/// Converts bucket_names() to indices into `parameters`.
std::vector<std::vector<size_t>> bucket_indices(
    const std::vector<std::vector<std::string>>& buckets,
    const std::vector<data_parallel::NamedTensor>& parameters);

/// Writes the data to stderr if the debug level is high enough: the setup from
/// kInfo, sampled iterations from kDetail.
void log_construction(const DDPLoggingData& data);
void log_iteration(const DDPLoggingData& data);

} // namespace weft::ddp
