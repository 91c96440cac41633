#pragma once

#include <optional>
#include <string>

#include "checkpoint/format/manifest.h"
#include "checkpoint/transfer/reshard.h"
#include "dtensor/spec/spec.h"
#include "mesh/device_mesh.h"

namespace weft::checkpoint {

/// How a tensor of a checkpoint lies on another mesh.
struct RemappedSpec {
  dtensor::DTensorSpec spec;
  /// Why it is not the tensor's own placements; empty: it is.
  std::string note = {};
};

/// `mesh` has at least the dims of the tensor's mesh, see ReshardOptions.
/// Throws: mesh::UsageError naming the tensor if it has not.
RemappedSpec remap_spec(
    const std::string& name,
    const TensorRecord& tensor,
    const mesh::DeviceMesh& mesh);

} // namespace weft::checkpoint
