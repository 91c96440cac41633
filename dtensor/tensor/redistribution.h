#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dtensor/tensor/dtensor.h"

namespace weft::dtensor {

/// What redistribute() in dtensor.h leaves to be said.
/// Source: torch/distributed/tensor/_api.py, DTensor.redistribute.
struct RedistributeOptions {
  /// Values are cast to it, moved (and reduced) in it, and stay in it.
  std::optional<at::ScalarType> forward_dtype = std::nullopt;
  /// Gradients are cast to it, moved (and reduced) in it, and cast to the
  /// tensor's dtype. By default the tensor's own.
  std::optional<at::ScalarType> backward_dtype = std::nullopt;
};

/// As redistribute(dtensor, placements).
/// Throws: also c10::ValueError for dtypes that are not of floating point.
at::Tensor redistribute(
    const at::Tensor& dtensor,
    const Placements& placements,
    const RedistributeOptions& options);

/// Moves a DTensor to another mesh: over the same ranks in other dims or
/// another order, to a slice of the world's mesh, or from one. A tensor on a
/// slice is taken to be the same on all the slices beside it. Differentiable,
/// any number of times.
/// Collective: all ranks of both meshes; blocks.
/// Throws: as redistribute(), and c10::ValueError naming both meshes if they
/// are not of one world.
at::Tensor redistribute(
    const at::Tensor& dtensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const RedistributeOptions& options = {});

/// A redistribution under way. Cheap to copy; copies share it.
/// Lifetime: keeps the tensor alive, which nobody may write to meanwhile.
class RedistributeWork {
 public:
  /// Blocks until the values have come and returns them as a DTensor, which is
  /// part of the graph if the tensor was where it started; the same one at
  /// every call.
  at::Tensor wait();
  bool is_completed() const;

  struct State;
  explicit RedistributeWork(std::shared_ptr<State> state);

 private:
  std::shared_ptr<State> state_;
};

/// redistribute() that returns while the last message is on its way (a plan of
/// several waits for the others), so that the caller can compute meanwhile.
/// Backward it blocks.
/// Collective: all ranks of the mesh.
/// Throws: as redistribute().
RedistributeWork redistribute_async(
    const at::Tensor& dtensor,
    const Placements& placements,
    const RedistributeOptions& options = {});

/// redistribute() of each tensor to its placements, those that take the same
/// step over the same ranks in one message for each dtype; the gradients too.
/// Sums may be added in another order than one by one.
/// Collective: all ranks of the meshes, with lists that are alike; blocks.
/// Throws: as redistribute(), before anything is sent; c10::ValueError if the
/// lists differ in length.
std::vector<at::Tensor> redistribute_coalesced(
    const std::vector<at::Tensor>& dtensors,
    const std::vector<Placements>& placements);

} // namespace weft::dtensor
