#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/format/manifest.h"
#include "checkpoint/load/load.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::checkpoint {

/// Returns zero tensors on the CPU with the names, sizes and dtypes of a part
/// of a checkpoint, for state whose sizes only the checkpoint knows, such as
/// that of a comm hook. Each is sharded along its first dim over all ranks of
/// `mesh`; tensors without dims are replicated. Empty if the checkpoint has no
/// such part. Not collective.
dtensor::StateDict empty_part(
    const Manifest& manifest,
    const std::string& part,
    const mesh::DeviceMesh& mesh);

/// Returns the tensors of empty_part(), loaded from a step folder. `options`
/// does not need patterns.
/// Collective: all ranks of `mesh`, which must be all ranks of the world;
/// blocks.
/// Throws: c10::ValueError, listing the parts, if the checkpoint has no such
/// part; CheckpointError like load().
dtensor::StateDict load_part(
    const std::filesystem::path& step_folder,
    const std::string& part,
    const mesh::DeviceMesh& mesh,
    LoadOptions options = {});

} // namespace weft::checkpoint
