#pragma once

#include <map>
#include <string>

#include "launcher/process/local_ranks.h"

namespace weft::launcher {

// Workers that all believe to be local rank 0 of a host with one device.
// Source: torch/distributed/elastic/agent/server/local_elastic_agent.py.

/// Makes a worker see one device: entry `local_rank` of the list in
/// HIP_VISIBLE_DEVICES, or otherwise in CUDA_VISIBLE_DEVICES, or the device
/// with that number if there is no list. An empty list means no devices and is
/// kept.
void set_virtual_device(
    std::map<std::string, std::string>& variables,
    int local_rank);

/// Makes the workers of a replica group see their part of the listed devices
/// or, without a list, of the `device_count` devices of this host. Changes
/// nothing if there are fewer devices than the host has workers.
void set_group_devices(
    std::map<std::string, std::string>& variables,
    LocalRanks workers,
    int worker_count,
    int device_count);

/// Throws: LaunchError if this process's variables list fewer devices than
/// there are workers.
void check_virtual_devices(int worker_count);

} // namespace weft::launcher
