#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <c10/core/Device.h>

namespace weft::mesh {

/// The device of this rank, "cpu" or "cuda", ready for use: of CUDA the one
/// with the rank's number on its host, which becomes this thread's current one.
/// Before the first question to libtorch about devices.
/// Throws: UsageError if it cannot be used here, saying why.
c10::Device open_device(
    std::string_view kind,
    int64_t local_rank,
    int64_t local_world_size);

/// Whether CUDA tensors go through the host's memory instead of NCCL, as
/// WEFT_CUDA_TRANSPORT says: "nccl" (the default) or "host".
/// Throws: UsageError for another value.
bool uses_host_transport();

/// The most memory that tensors on `device` have taken; none of the CPU, which
/// counts for the whole process. Units: MiB.
std::optional<double> peak_device_mb(c10::Device device);

/// Which of a host's `count` devices a rank uses: `wanted`, or its own number
/// among the host's ranks.
/// Throws: UsageError if there are more ranks than devices, or no such device.
int64_t choose_device(
    int64_t local_rank,
    int64_t local_world_size,
    int64_t count,
    std::optional<int64_t> wanted);

} // namespace weft::mesh
