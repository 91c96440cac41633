#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <c10/core/Device.h>

namespace weft::mesh {

/// Returns the device of this rank, "cpu" or "cuda", ready for use. For CUDA it
/// is the device with the rank's local number, which becomes this thread's
/// current device. Must be called before libtorch is asked for devices.
/// Throws: UsageError if the device cannot be used, with the reason.
c10::Device open_device(
    std::string_view kind,
    int64_t local_rank,
    int64_t local_world_size);

/// Returns true if CUDA tensors are moved through host memory instead of NCCL.
/// WEFT_CUDA_TRANSPORT selects it: "nccl" (the default) or "host".
/// Throws: UsageError for another value.
bool uses_host_transport();

/// Returns the peak memory of tensors on `device` in MiB. Empty for the CPU,
/// whose peak is that of the process.
std::optional<double> peak_device_mb(c10::Device device);

/// Returns the device of a rank among the `count` devices of its host:
/// `wanted`, or the rank's local number.
/// Throws: UsageError if there are more ranks than devices, or no such device.
int64_t choose_device(
    int64_t local_rank,
    int64_t local_world_size,
    int64_t count,
    std::optional<int64_t> wanted);

} // namespace weft::mesh
