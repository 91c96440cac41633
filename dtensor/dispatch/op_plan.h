#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

/// How one op call runs on this rank: the inputs to redistribute, the arguments
/// of the local call to change, and how to wrap its results. Holds entries of
/// the mesh's table instead of specs, because the mesh owns the plans.
struct OpPlan {
  /// A DTensor argument.
  struct Input {
    size_t argument;
    /// The position in a tensor list, or -1.
    int64_t list_index;
    const DTensorSpec::Entry* from;
    /// The spec to which it is redistributed. Null means that it is used as it
    /// is.
    const DTensorSpec::Entry* to;
    /// True if the op writes to it and returns it.
    bool is_written;
  };
  /// An out= tensor. The op writes to it directly if its placements are those
  /// of the result; otherwise the result is redistributed and copied.
  struct Out {
    size_t argument;
    int64_t list_index;
    const DTensorSpec::Entry* spec;
    /// The spec of the result. Null means `spec`.
    const DTensorSpec::Entry* result;
    /// The sizes of the result on this rank.
    std::vector<int64_t> result_sizes;
  };
  struct Output {
    const DTensorSpec::Entry* spec;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  std::vector<Input> inputs;
  std::vector<Out> outs;
  std::vector<std::pair<size_t, c10::IValue>> local_arguments;
  /// The new tensors that the op returns, with lists flattened. Empty if it
  /// returns the arguments that it writes to.
  std::vector<Output> outputs;
  /// Set if the results are replicated; their sizes are then those of the
  /// tensors.
  const DTensorSpec::Entry* replicated_results = nullptr;
  bool writes = false;
  /// True if redistributing several inputs together costs less than one at a
  /// time.
  bool is_coalesced = false;
  /// True if the result shares memory with an argument.
  bool is_view = false;
  /// See Rule::reshapes.
  bool reshapes = false;
};

/// Asks the op's rule for strategies and selects the cheapest one for each mesh
/// dim. Deterministic: equal calls give equal plans on every rank.
/// Throws: c10::ValueError if the op has no rule, or an in-place op cannot keep
/// its tensor's placement.
OpPlan make_op_plan(const OpCall& call);

} // namespace weft::dtensor
