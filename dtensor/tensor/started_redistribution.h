#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "dtensor/redistribute/redistribute_run.h"
#include "dtensor/spec/spec.h"
#include "mesh/communicator/communicator.h"

namespace weft::dtensor {

/// A redistribution on the tensor's own mesh whose last message is being sent.
/// Below autograd.
/// Lifetime: keeps the tensor alive. Nothing may write to it until finish().
class StartedRedistribution {
 public:
  /// Casts to `dtype` and sends. Waits for all messages except the last.
  /// Collective: all ranks of the mesh.
  /// Throws: like redistribute_local().
  StartedRedistribution(
      at::Tensor dtensor,
      const DTensorSpec& to,
      at::ScalarType dtype,
      std::string_view name);

  bool is_completed() const;
  /// Blocks and returns the result as a DTensor. Called once.
  at::Tensor finish();

 private:
  at::Tensor source_;
  DTensorSpec to_;
  RedistributeRun run_;
  mesh::Work work_;
};

} // namespace weft::dtensor
