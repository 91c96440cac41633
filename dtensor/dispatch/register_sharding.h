#pragma once

#include <string>
#include <string_view>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

/// Gives an op of any namespace a sharding rule, so that it runs on DTensors as
/// libtorch's own do: inputs are brought to the cheapest strategy's placements,
/// the op runs on the local tensors, and gradients flow through whatever
/// autograd kernel the op has (its backward's ops need rules too). Once a
/// process, after the op's kernels are registered, from any thread.
///   register_sharding("my::scale", {.strategies = per_dim, .infer = sizes});
/// `op`: "my::scale" (every overload) or "my::scale.out" (one).
/// Throws: c10::ValueError for an op that is not registered, that has a rule or
/// kernel for DTensors already, that libtorch makes of other ops (those have
/// rules, it needs none), or whose output sizes nothing tells (Rule::infer or a
/// Meta kernel).
/// Source: torch/distributed/tensor/experimental/_register_sharding.py.
void register_sharding(const std::string& op, const Rule& rule);

} // namespace weft::dtensor
