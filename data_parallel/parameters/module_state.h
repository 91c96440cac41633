#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace weft::ddp {

/// A parameter or buffer and its fully qualified name.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// A module's parameters in the order of their registration. One that is
/// registered at several places (tied weights) comes once, by its first name.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
/// The same of its buffers.
std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);

/// What this rank holds of a parameter, buffer or gradient: a DTensor's local
/// tensor, or the tensor itself; no part of a graph, in the same memory.
at::Tensor local_part(const at::Tensor& tensor);

/// to = from / divisor, in one pass where both have one dtype.
void copy_divided(const at::Tensor& to, const at::Tensor& from, double divisor);

} // namespace weft::ddp
