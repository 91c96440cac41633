#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

/// How one op call runs on this rank: what to redistribute, what to change in
/// the local call's arguments, and how to wrap what it returns. Keeps entries
/// of the mesh's table instead of specs, since plans live in the mesh.
struct OpPlan {
  /// A DTensor argument.
  struct Input {
    size_t argument;
    /// Position in a tensor list, or -1.
    int64_t list_index;
    const DTensorSpec::Entry* from;
    /// What it is brought to; null: as it is.
    const DTensorSpec::Entry* to;
    /// The op writes to it, and returns it.
    bool is_written;
  };
  /// An out= tensor. The op writes to it directly where its result lies as the
  /// tensor does, to a new one that is redistributed and copied otherwise.
  struct Out {
    size_t argument;
    int64_t list_index;
    const DTensorSpec::Entry* spec;
    /// Where the result lies; null: as `spec`.
    const DTensorSpec::Entry* result;
    /// This rank's sizes of the result.
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
  /// New tensors that the op returns, lists flat; empty if it returns the
  /// arguments that it writes to.
  std::vector<Output> outputs;
  /// Set if every rank has the results whole: their sizes are the tensors'.
  const DTensorSpec::Entry* replicated_results = nullptr;
  bool writes = false;
  /// Several inputs are moved, at less cost together than one by one.
  bool is_coalesced = false;
  /// The result shares memory with an argument.
  bool is_view = false;
  /// See Rule::reshapes.
  bool reshapes = false;
};

/// Asks the op's rule and picks the cheapest strategy for each mesh dim. Pure:
/// equal calls give equal plans on every rank.
/// Throws: c10::ValueError for an op without a rule, or if an in-place op
/// cannot keep its tensor's placement.
OpPlan make_op_plan(const OpCall& call);

} // namespace weft::dtensor
