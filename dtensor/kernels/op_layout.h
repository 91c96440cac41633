#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/kernels/kernels.h"
#include "dtensor/spec/mesh_arguments.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/parameter_info.h"

// What a style asks of an op that uses a parameter.

namespace weft::dtensor::kernels {

/// The input of an op that uses `parameter`, on the mesh of `spec`, where the
/// style wants it.
inline at::Tensor place_as(
    const at::Tensor& input,
    const DTensorSpec& spec,
    const OpLayout& layout,
    const char* op,
    const at::Tensor& parameter) {
  const auto placed = place(input, spec, layout.input);
  return layout.desired_input
             ? redistribute_to(
                   placed,
                   spec.with(normalized(*layout.desired_input, placed.dim())),
                   label(op, parameter))
             : placed;
}

} // namespace weft::dtensor::kernels
