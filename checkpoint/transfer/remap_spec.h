#pragma once

#include <optional>
#include <string>

#include "checkpoint/format/manifest.h"
#include "checkpoint/transfer/reshard.h"
#include "dtensor/spec/spec.h"
#include "mesh/device_mesh.h"

namespace weft::checkpoint {

/// The placements of a tensor of a checkpoint on another mesh.
struct RemappedSpec {
  dtensor::DTensorSpec spec;
  /// The reason why the tensor's placements were changed. Empty if they were
  /// kept.
  std::string note = {};
};

/// Maps a tensor's placements to `mesh`, which must have the dims of the
/// tensor's mesh; see ReshardOptions.
/// Throws: mesh::UsageError naming the tensor if `mesh` lacks a dim.
RemappedSpec remap_spec(
    const std::string& name,
    const TensorRecord& tensor,
    const mesh::DeviceMesh& mesh);

} // namespace weft::checkpoint
