#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace weft::dtensor {

/// Scales the gradients of `parameters` so that their total norm is at most
/// `max_norm`, and returns the norm before that. Every element of the full
/// tensors counts once: sharded gradients are joined over their mesh in one
/// reduction, and replicated ones are not counted twice. All ranks get the same
/// number. DTensor and plain parameters may be mixed; those without gradient
/// are skipped.
/// Collective: all ranks of the parameters' mesh, if any gradient is sharded.
/// Throws: c10::ValueError for a gradient that is Partial.
/// Source: torch/nn/utils/clip_grad.py.
double clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm);

/// Returns the total 2-norm of the gradients, as clip_grad_norm_() computes it.
double grad_norm(const std::vector<at::Tensor>& parameters);

/// grad_norm() split in two, so that a caller can reduce further values in the
/// same all_reduce.
class GradNorm {
 public:
  /// Computes this rank's sums of squares. Not collective.
  /// Throws: c10::ValueError for a gradient that is Partial.
  explicit GradNorm(const std::vector<at::Tensor>& parameters);

  /// Returns true if the sums are finite on this rank. They may differ on other
  /// ranks.
  bool is_finite() const;

  /// Returns the norm.
  /// Collective: like grad_norm().
  double all_reduce() const;
  /// Like all_reduce(), and replaces `extra_sums`, doubles on the CPU, by their
  /// sums over the ranks of `line`, a 1-D mesh. They share the norm's message
  /// if gradients are sharded over that dim alone. The norm is bitwise that of
  /// all_reduce().
  /// Collective: additionally all ranks of `line`.
  double all_reduce(const mesh::DeviceMesh& line, const at::Tensor& extra_sums)
      const;

 private:
  /// The sum over gradients that are sharded over the same dims of the same
  /// mesh. Without dims it needs no reduction.
  struct SumOfSquares {
    mesh::DeviceMesh mesh;
    std::vector<int64_t> cut;
    double value = 0;
  };

  double& sum_of(const mesh::DeviceMesh& mesh, const std::vector<int64_t>& cut);

  std::vector<SumOfSquares> sums_;
};

/// Scales the gradients as clip_grad_norm_() does for a known norm. A
/// `total_norm` that is not finite leaves them unchanged.
void clip_grads_with_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double total_norm);

} // namespace weft::dtensor
