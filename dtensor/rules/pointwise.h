#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "dtensor/rules/rule.h"

namespace weft::dtensor {

/// A pending reduction that an elementwise op may leave pending: where the
/// tensors at these positions of the schema are Partial(from) and all others
/// are whole, the results are Partial(to).
struct PartialPassThrough {
  std::vector<size_t> arguments;
  ReduceOp from;
  ReduceOp to;
  /// New values are computed rather than picked among the inputs': unsigned
  /// integers may wrap, and then order says nothing.
  bool computes = true;
};
using PartialPassThroughs = std::vector<PartialPassThrough>;
using PartialPassThroughFn = std::function<PartialPassThroughs(const OpCall&)>;

PartialPassThroughs operator+(
    PartialPassThroughs left,
    const PartialPassThroughs& right);

/// f(a + b) = f(a) + f(b), in these arguments together.
PartialPassThroughs linear(std::vector<size_t> arguments);
/// Linear up to a constant: only averages pass.
PartialPassThroughs affine(std::vector<size_t> arguments);
/// f(max(a, b)) = max(f(a), f(b)) in one argument, for every number; and min.
PartialPassThroughs monotone_increasing(size_t argument);
/// f(max(a, b)) = min(f(a), f(b)) in one argument, for every number.
PartialPassThroughs monotone_decreasing(size_t argument);
/// f(a * b) = f(a) * f(b), in these arguments together.
PartialPassThroughs multiplicative(std::vector<size_t> arguments);
/// Values are moved from these arguments, not computed; from no others.
PartialPassThroughs moves(std::vector<size_t> arguments);
/// Values are moved from these arguments or from others: holds for reductions
/// of which equal terms give that term.
PartialPassThroughs mixes(std::vector<size_t> arguments);
/// One reduction of these arguments.
PartialPassThroughs selects(std::vector<size_t> arguments, ReduceOp op);

/// Cuts of any dim of the broadcast sizes; `outputs` says how the op's outputs
/// lie when a dim is cut.
std::vector<Strategy> shard_broadcast_dims(
    const OpCall& call,
    c10::IntArrayRef sizes,
    const std::function<Placements(int64_t dim)>& outputs);
/// Cuts of any dim of the outputs, which have the broadcast sizes.
std::vector<Strategy> shard_any_dim(
    const OpCall& call,
    const StrategyContext& context);
void append_carries(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const PartialPassThroughs& carries);

/// Broadcast sizes, with the dims in memory in the inputs' order: what
/// TensorIterator makes. One an output.
std::vector<OutputMeta> broadcast(const OpCall& call);

/// The rule of an elementwise op with these carries.
Rule elementwise(PartialPassThroughs carries = {});
Rule elementwise(PartialPassThroughFn carries);

/// The position of the argument called `name`.
size_t argument_position(const OpCall& call, std::string_view name);
/// A number among the arguments; none if it is complex or absent.
std::optional<double> real_number(const c10::IValue& value);

void add_pointwise_backward_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);

} // namespace weft::dtensor
