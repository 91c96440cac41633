#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

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

/// What clip_grad_norm_ does once it has the norm. A `total_norm` that is not
/// finite leaves the gradients as they are, to be looked at.
void clip_grads_with_norm_(
    const std::vector<at::Tensor>& parameters,
    double max_norm,
    double total_norm);

} // namespace weft::dtensor
