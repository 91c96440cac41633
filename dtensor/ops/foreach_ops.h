#pragma once

#include <set>
#include <string>

namespace torch {
class Library;
} // namespace torch

namespace weft::dtensor {

/// Registers kernels for ops on lists of tensors: foreach ops, the steps of
/// fused optimizers, and the ops of gradient scalers. Returns their full names.
std::set<std::string> register_foreach_ops(torch::Library& library);

} // namespace weft::dtensor
