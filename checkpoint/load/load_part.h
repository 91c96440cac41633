#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/format/manifest.h"
#include "checkpoint/load/load.h"
#include "dtensor/nn/state_dict.h"
#include "mesh/device_mesh.h"

namespace weft::checkpoint {

/// Tensors of zeros, on the CPU, with the names, sizes and dtypes that a part
/// of a checkpoint has: for what only the checkpoint knows the sizes of, such
/// as what a comm hook keeps. Each is cut along its first dim over all ranks of
/// `mesh`; those without dims are whole on every rank. None if there is no such
/// part. Not collective.
dtensor::StateDict empty_part(
    const Manifest& manifest,
    const std::string& part,
    const mesh::DeviceMesh& mesh);

/// Those tensors, loaded from a step folder; of the patterns in `options` none
/// is needed.
/// Collective: all ranks of `mesh`, which are all of the world; blocks.
/// Throws: c10::ValueError if there is no such part, naming those that there
/// are; CheckpointError as load().
dtensor::StateDict load_part(
    const std::filesystem::path& step_folder,
    const std::string& part,
    const mesh::DeviceMesh& mesh,
    LoadOptions options = {});

} // namespace weft::checkpoint
