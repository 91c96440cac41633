#pragma once

#include "mesh/device_mesh.h"

namespace weft::dtensor {

// Note [Overlap within a layer]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A column-parallel linear gathers its input before its product, and backward
// reduces the input's gradient after one; a row-parallel linear does the
// reverse. What does not depend on those messages is computed while they are
// under way: backward, the gradients of the weights that share a gathered input
// come after the reduction of its gradient has been started, and before it is
// waited for. Results are the same bits.

/// Whether the collectives of tensor-parallel layers overlap with arithmetic.
enum class AsyncTp {
  /// Where it costs nothing: as kOn.
  kAuto,
  kOn,
  kOff,
};

/// From now on for all meshes with `mesh`'s root. To be called on all ranks
/// with one value, between steps: the graph remembers.
/// Source: Wang et al., Overlap Communication with Dependent Computation via
/// Decomposition (ASPLOS 2023); Megatron-LM's
/// LinearWithGradAccumulationAndAsyncCommunication.
void set_async_tp(const mesh::DeviceMesh& mesh, AsyncTp mode);
AsyncTp async_tp(const mesh::DeviceMesh& mesh);

} // namespace weft::dtensor
