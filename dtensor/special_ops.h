#pragma once

#include <set>
#include <string>

namespace torch {
class Library;
} // namespace torch

namespace weft::dtensor {

/// Registers kernels for ops that no sharding rule describes: those on lists
/// of tensors (foreach, fused optimizers), norms over sharded dims, and those
/// that return values (item, equal). Returns their full names.
std::set<std::string> register_special_ops(torch::Library& library);

} // namespace weft::dtensor
