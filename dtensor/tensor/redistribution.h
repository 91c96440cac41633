#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dtensor/tensor/dtensor.h"

namespace weft::dtensor {

/// The dtypes of redistribute() in dtensor.h.
/// Source: torch/distributed/tensor/_api.py, DTensor.redistribute.
struct RedistributeOptions {
  /// The dtype to which values are cast before they are communicated and
  /// reduced. The result has it.
  std::optional<at::ScalarType> forward_dtype = std::nullopt;
  /// The dtype to which gradients are cast before they are communicated and
  /// reduced. They are then cast to the tensor's dtype. The default is the
  /// tensor's dtype.
  std::optional<at::ScalarType> backward_dtype = std::nullopt;
};

/// Like redistribute(dtensor, placements).
/// Throws: also c10::ValueError for dtypes that are not floating point.
at::Tensor redistribute(
    const at::Tensor& dtensor,
    const Placements& placements,
    const RedistributeOptions& options);

/// Redistributes a DTensor to another mesh: over the same ranks with other dims
/// or another order, to a slice of the world's mesh, or from one. A tensor on a
/// slice is assumed to be identical on all parallel slices. Differentiable to
/// any order.
/// Collective: all ranks of both meshes; blocks.
/// Throws: like redistribute(), and c10::ValueError naming both meshes if they
/// are not of one world.
at::Tensor redistribute(
    const at::Tensor& dtensor,
    const mesh::DeviceMesh& mesh,
    const Placements& placements,
    const RedistributeOptions& options = {});

/// A running redistribution. Cheap to copy; copies share it.
/// Lifetime: keeps the tensor alive. Nothing may write to it until wait().
class RedistributeWork {
 public:
  /// Blocks until the values have arrived and returns them as a DTensor, which
  /// is part of the autograd graph if the input was part of it when the
  /// redistribution started. Every call returns the same DTensor.
  at::Tensor wait();
  /// Returns true if wait() would not block.
  bool is_completed() const;

  struct State;
  /// Used by redistribute_async().
  explicit RedistributeWork(std::shared_ptr<State> state);

 private:
  std::shared_ptr<State> state_;
};

/// Starts a redistribution and returns while its last message is being sent (it
/// waits for earlier ones), so that the caller can compute meanwhile. Backward
/// blocks.
/// Collective: all ranks of the mesh.
/// Throws: like redistribute().
RedistributeWork redistribute_async(
    const at::Tensor& dtensor,
    const Placements& placements,
    const RedistributeOptions& options = {});

/// Redistributes each tensor to its placements; those with the same step over
/// the same ranks share one message per dtype, in backward too. Sums may be
/// added in another order than one at a time.
/// Collective: all ranks of the meshes, with identical lists; blocks.
/// Throws: like redistribute(), before anything is sent; c10::ValueError if the
/// lists differ in length.
std::vector<at::Tensor> redistribute_coalesced(
    const std::vector<at::Tensor>& dtensors,
    const std::vector<Placements>& placements);

} // namespace weft::dtensor
