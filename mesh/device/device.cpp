#include "mesh/device/device.h"

#include <limits>
#include <string>

#include "mesh/bootstrap/env.h"
#include "mesh/device/device_plugin.h"
#include "mesh/error/error.h"

namespace weft::mesh {
namespace {

constexpr int64_t kMaxDevices = std::numeric_limits<c10::DeviceIndex>::max();

// Makes a failed collective end its kernels but not the process: this rank
// reports the error and exits with its own code. See Note [Streams]. Launchers
// set PyTorch's variable to 1 like torchrun, so its value shows no choice of
// the user. WEFT_NCCL_ASYNC_ERROR_HANDLING sets another mode for weft.
void leave_failures_to_us() {
  constexpr const char* kTorchs = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  constexpr const char* kOurs = "WEFT_NCCL_ASYNC_ERROR_HANDLING";
  const auto mode = env::get_int(kOurs, 0, 3).value_or(2);
  env::unset(kTorchs);
  env::set_default(kTorchs, std::to_string(mode).c_str());
  // Otherwise libtorch would give its flight recorder, which is off, a minute
  // to write before it ends the kernels.
  env::set_default("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  env::set_default("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0");
}

} // namespace

int64_t choose_device(
    int64_t local_rank,
    int64_t local_world_size,
    int64_t count,
    std::optional<int64_t> wanted) {
  if (wanted) {
    if (*wanted >= count) {
      throw_error<UsageError>(detail::concat(
          "[device] WEFT_CUDA_DEVICE=",
          *wanted,
          " vs ",
          count,
          " CUDA device(s) visible to this rank. Use a smaller index; the "
          "first device is 0."));
    }
    return *wanted;
  }
  if (local_world_size > count) {
    throw_error<UsageError>(detail::concat(
        "[device] ",
        local_world_size,
        " ranks on this host vs ",
        count,
        " CUDA device(s) visible to this rank; each rank needs its own device. "
        "Start at most ",
        count,
        " here (weftrun --nproc-per-node ",
        count,
        "), or set WEFT_CUDA_DEVICE=0 if each rank sees only its own device."));
  }
  return local_rank;
}

bool uses_host_transport() {
  const auto transport = env::get("WEFT_CUDA_TRANSPORT").value_or("nccl");
  if (transport != "nccl" && transport != "host") {
    throw_error<UsageError>(detail::concat(
        "[device] WEFT_CUDA_TRANSPORT=",
        transport,
        " is unknown. Use nccl, or host (through host memory)."));
  }
  return transport == "host";
}

std::optional<double> peak_device_mb(c10::Device device) {
  if (!device.is_cuda()) {
    return std::nullopt;
  }
  const auto bytes = cuda_plugin().peak_bytes(device.index());
  return static_cast<double>(bytes) / 1048576.0;
}

c10::Device open_device(
    std::string_view kind,
    int64_t local_rank,
    int64_t local_world_size) {
  if (kind == "cpu") {
    return c10::Device(c10::DeviceType::CPU);
  }
  if (kind != "cuda") {
    throw_error<UsageError>(
        detail::concat("[device] '", kind, "' is unknown. Use cpu or cuda."));
  }
  leave_failures_to_us();
  uses_host_transport(); // Throws early if the variable is invalid.
  const auto& plugin = cuda_plugin();
  const int64_t index = choose_device(
      local_rank,
      local_world_size,
      plugin.device_count(),
      env::get_int("WEFT_CUDA_DEVICE", 0, kMaxDevices));
  plugin.use_device(index);
  return c10::Device(
      c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

} // namespace weft::mesh
