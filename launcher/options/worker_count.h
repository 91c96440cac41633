#pragma once

#include <filesystem>
#include <string>

namespace weft::launcher {

/// How many workers `--nproc-per-node text` asks for: a number, "cpu" (cores
/// that this process may use, see base/usable_cores.h), "gpu" (NVIDIA devices)
/// or "auto" (gpu if there are any, else cpu). Throws: LaunchError if it is
/// none of these, or "gpu" without a GPU.
int worker_count(const std::string& text);

/// Devices named nvidia0, nvidia1, ... in `folder`; where CUDA_VISIBLE_DEVICES
/// is set (`visible` is not null) the number of entries it lists.
int count_gpus(const std::filesystem::path& folder, const char* visible);

} // namespace weft::launcher
