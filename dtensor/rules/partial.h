#pragma once

#include <string_view>
#include <vector>

#include "dtensor/rules/rule.h"

// Note [Pending reductions]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// An op that only moves values gives the same result whether a reduction over
// the ranks comes before it or after. A constant that it puts beside them (the
// zeros of a pad) has to come out of the reduction unchanged: n equal numbers
// have themselves as average, min and max; 0 as a sum too, 0 and 1 as a
// product.

namespace weft::dtensor::rules {

using Reductions = std::vector<ReduceOp>;

/// The reductions that commute with an op that only moves values.
Reductions every_reduction();
/// The reductions that commute with a linear op. Averages of integers do not,
/// because they are rounded.
Reductions linear_reductions(const OpCall& call);
/// The reductions that preserve a number that every rank has. For an unknown
/// number: average, min and max.
Reductions reductions_keeping(const c10::IValue& number);

/// Adds strategies with a Partial on the tensors of the arguments `inputs`
/// together and on all outputs; other tensors are replicated.
void add_pending(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const Reductions& reductions,
    std::initializer_list<std::string_view> inputs);

/// Returns a strategy with all outputs at `output`, the named tensor arguments
/// at their placements, and all others replicated.
Strategy cut_strategy(
    const OpCall& call,
    Placement output,
    std::initializer_list<std::pair<std::string_view, Placement>> inputs);

/// Returns true if a dim of `size` rows is sharded evenly in whichever order
/// the mesh dims shard it. Strategies with `chunked_only` need this if they
/// shard dims of several sizes, each into parts of the same ratio.
bool divides(int64_t size, const StrategyContext& context);
/// Returns true if the chunk rule gives every rank some rows, whichever other
/// mesh dims shard the same dim.
bool never_empty(
    int64_t size,
    const OpCall& call,
    const StrategyContext& context);

} // namespace weft::dtensor::rules
