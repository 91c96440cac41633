#pragma once

#include <set>
#include <string>

namespace torch {
class Library;
} // namespace torch

namespace weft::dtensor {

/// Registers kernels for ops that no sharding rule describes: ops on lists of
/// tensors, cross-shard reductions, ops that return values (item, equal), and
/// lazy views. Returns their full names.
std::set<std::string> register_special_ops(torch::Library& library);

} // namespace weft::dtensor
