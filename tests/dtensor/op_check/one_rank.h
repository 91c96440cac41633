#pragma once

#include <cstdint>
#include <vector>

#include "tests/dtensor/op_check/op_samples.h"

namespace weft::dtensor::check {

/// What random ops draw from.
constexpr uint64_t kRandomSeed = 7;

/// What one rank makes of a sample.
struct Expected {
  std::vector<at::Tensor> outputs;
  /// The weights of each output, see functionals(). Empty if the op has no
  /// gradient.
  std::vector<at::Tensor> weights;
  /// The gradients of the inputs that have one.
  std::vector<at::Tensor> gradients;
};

/// Random ops run on a mesh of one rank; those in place get no gradients.
Expected on_one_rank(const Sample& sample);

/// Whether an input is of a dtype that has gradients.
bool wants_gradient(const at::Tensor& tensor);

/// The inputs that require a gradient.
std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& tensors);

/// A random linear functional of each output that has a gradient.
std::vector<at::Tensor> functionals(const std::vector<at::Tensor>& outputs);

/// The gradients of `inputs` by those functionals; undefined where unused.
std::vector<at::Tensor> gradients(
    const std::vector<at::Tensor>& outputs,
    const std::vector<at::Tensor>& weights,
    const std::vector<at::Tensor>& inputs);

} // namespace weft::dtensor::check
