#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/device_mesh.h"

namespace weft::dtensor {

/// Scales the gradients of `parameters` so that their joint norm is at most
/// `max_norm`, and returns the norm before that. Every element of the whole
/// tensors counts once: cut ones are joined over their mesh in one reduction,
/// replicated ones are not counted twice. All ranks get the same number.
/// DTensor and plain parameters may be mixed; those without gradient are
/// skipped.
/// Collective: all ranks of the parameters' mesh, if any is cut.
/// Throws: c10::ValueError for a gradient that is a pending sum.
/// Source: torch/nn/utils/clip_grad.py.
double clip_grad_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm);

/// The joint 2-norm of the gradients, as clip_grad_norm_ computes it.
double grad_norm(const std::vector<at::Tensor>& parameters);

/// That norm in two halves, for who has more to say in the same message.
class GradNorm {
 public:
  /// What this rank has of the sums of squares. Not collective.
  /// Throws: c10::ValueError for a gradient that is a pending sum.
  explicit GradNorm(const std::vector<at::Tensor>& parameters);

  /// Whether they are finite here; on other ranks they may not be.
  bool is_finite() const;

  /// Collective: as grad_norm().
  double all_reduce() const;
  /// The same; `extra_sums`, doubles on the CPU, become their sums over the
  /// ranks of `line`, a mesh of one dim: in the norm's own message, where
  /// gradients are cut over that dim alone. The norm's bits are those of
  /// all_reduce().
  /// Collective: all ranks of `line` too.
  double all_reduce(const mesh::DeviceMesh& line, const at::Tensor& extra_sums)
      const;

 private:
  /// Of the gradients that are cut over the same dims of the same mesh; over
  /// no dims it needs no reduction.
  struct SumOfSquares {
    mesh::DeviceMesh mesh;
    std::vector<int64_t> cut;
    double value = 0;
  };

  double& sum_of(const mesh::DeviceMesh& mesh, const std::vector<int64_t>& cut);

  std::vector<SumOfSquares> sums_;
};

/// What clip_grad_norm_ does once it has the norm. A `total_norm` that is not
/// finite leaves the gradients as they are, to be looked at.
void clip_grads_with_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double total_norm);

} // namespace weft::dtensor
