#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtensor/rule.h"

namespace weft::dtensor {

/// How one op call runs on this rank: what to redistribute, what to change in
/// the local call's arguments, and how to wrap what it returns.
struct OpPlan {
  struct Output {
    const DTensorSpec::Entry* spec;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  /// The spec each TensorArgument is brought to; null: as it is. Entries of
  /// the mesh's table, since plans live in the mesh.
  std::vector<const DTensorSpec::Entry*> inputs;
  std::vector<std::pair<size_t, c10::IValue>> local_arguments;
  /// Empty for ops that write to an argument: they return that argument.
  std::vector<Output> outputs;
  /// A view whose input had to move: its result is a copy.
  bool copied_view = false;
  /// See Rule::reshapes.
  bool reshapes = false;
};

/// Asks the op's rule and picks the cheapest strategy for each mesh dim. Pure:
/// equal calls give equal plans on every rank.
/// Throws: c10::NotImplementedError for an op without a rule; c10::ValueError
/// if an in-place op cannot keep its tensor's placement.
OpPlan make_op_plan(const OpCall& call);

/// "(S(0), R)": the placements of a call's tensors, for messages.
std::string describe_arguments(const OpCall& call);

} // namespace weft::dtensor
