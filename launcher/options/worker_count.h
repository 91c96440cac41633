#pragma once

#include <filesystem>
#include <string>

namespace weft::launcher {

/// The most workers that a host may have.
constexpr int kMaxWorkers = 4096;

/// Returns the number of workers that `--nproc-per-node text` requests: a
/// number, "cpu" (cores that this process may use, see base/usable_cores.h),
/// "gpu" (NVIDIA devices) or "auto" (gpu if there are any, otherwise cpu).
/// Throws: LaunchError if the text is none of these, or if it is "gpu" on a
/// host without a GPU.
int worker_count(const std::string& text);

/// Returns the number of devices nvidia0, nvidia1, ... in `folder`. If
/// `visible` (CUDA_VISIBLE_DEVICES) is not null, returns the number of its
/// entries instead.
int count_gpus(const std::filesystem::path& folder, const char* visible);

} // namespace weft::launcher
