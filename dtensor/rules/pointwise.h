#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

/// A reduction that commutes with an elementwise op: if the tensors at these
/// schema positions are Partial(from) and all others are replicated, the
/// results are Partial(to).
struct PartialPassThrough {
  std::vector<size_t> arguments;
  ReduceOp from;
  ReduceOp to;
  /// True if results are computed rather than selected from the inputs.
  /// Computed unsigned integers may wrap, so order is not preserved.
  bool computes = true;
};
using PartialPassThroughs = std::vector<PartialPassThrough>;
using PartialPassThroughFn = std::function<PartialPassThroughs(const OpCall&)>;

PartialPassThroughs operator+(
    PartialPassThroughs left,
    const PartialPassThroughs& right);

/// f(a + b) = f(a) + f(b) in these arguments together.
PartialPassThroughs linear(std::vector<size_t> arguments);
/// Linear up to a constant: only averages commute.
PartialPassThroughs affine(std::vector<size_t> arguments);
/// f(max(a, b)) = max(f(a), f(b)) in one argument for every number; also for
/// min.
PartialPassThroughs monotone_increasing(size_t argument);
/// f(max(a, b)) = min(f(a), f(b)) in one argument for every number.
PartialPassThroughs monotone_decreasing(size_t argument);
/// f(a * b) = f(a) * f(b) in these arguments together.
PartialPassThroughs multiplicative(std::vector<size_t> arguments);
/// Results are values of these arguments only, moved and not computed.
PartialPassThroughs moves(std::vector<size_t> arguments);
/// Results are values of these arguments or of others. Holds for reductions
/// whose result for equal terms is that term.
PartialPassThroughs mixes(std::vector<size_t> arguments);
/// One reduction of these arguments.
PartialPassThroughs selects(std::vector<size_t> arguments, ReduceOp op);

/// Returns strategies that shard any dim of the broadcast sizes. `outputs`
/// returns the placements of the op's outputs for a sharded dim.
std::vector<Strategy> shard_broadcast_dims(
    const OpCall& call,
    c10::IntArrayRef sizes,
    const std::function<Placements(int64_t dim)>& outputs);
/// Returns strategies that shard any dim of the outputs, which have the
/// broadcast sizes.
std::vector<Strategy> shard_any_dim(
    const OpCall& call,
    const StrategyContext& context);
void append_carries(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const PartialPassThroughs& carries);

/// Returns the broadcast sizes with the inputs' order of dims in memory, as
/// TensorIterator does; one per output.
std::vector<OutputMeta> broadcast(const OpCall& call);

/// Returns the rule of an elementwise op with these pass-throughs.
Rule elementwise(PartialPassThroughs carries = {});
Rule elementwise(PartialPassThroughFn carries);

/// Returns the position of the argument `name`.
size_t argument_position(const OpCall& call, std::string_view name);
/// Returns an argument as a real number. Empty if it is complex or absent.
std::optional<double> real_number(const c10::IValue& value);

void add_pointwise_backward_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);

} // namespace weft::dtensor
