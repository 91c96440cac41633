#pragma once

#include <string>
#include <string_view>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

/// Registers a sharding rule for an op of any namespace, so that it runs on
/// DTensors like a libtorch op: inputs are redistributed to the placements of
/// the cheapest strategy, the op runs on the local tensors, and gradients use
/// the op's autograd kernel (the ops of its backward also need rules). Call it
/// once per process, from any thread, after the op's kernels are registered:
/// register_sharding("my::scale", {.strategies = per_dim, .infer = sizes}).
/// `op` is "my::scale" (all overloads) or "my::scale.out" (one overload).
/// Throws: c10::ValueError if the op is not registered, already has a rule or
/// kernel for DTensors, is decomposed by libtorch into ops with rules, or has
/// no source for its output sizes (Rule::infer or a Meta kernel).
/// Source: torch/distributed/tensor/experimental/_register_sharding.py.
void register_sharding(const std::string& op, const Rule& rule);

} // namespace weft::dtensor
