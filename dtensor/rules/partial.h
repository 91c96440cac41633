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

/// What an op that moves values lets through.
Reductions every_reduction();
/// The same for one that is linear; averages of integers are rounded.
Reductions linear_reductions(const OpCall& call);
/// Those that leave a number alone which every rank has; of one that is not
/// known, average, min and max.
Reductions reductions_keeping(const c10::IValue& number);

/// Adds strategies with a pending reduction on the tensors of the arguments
/// `inputs` together, and on all outputs; other tensors are whole.
void add_pending(
    std::vector<Strategy>& strategies,
    const OpCall& call,
    const Reductions& reductions,
    std::initializer_list<std::string_view> inputs);

/// A strategy with every output at `output`, the tensors of the arguments named
/// at their placements and all others whole.
Strategy cut_strategy(
    const OpCall& call,
    Placement output,
    std::initializer_list<std::pair<std::string_view, Placement>> inputs);

/// Whether a dim of `size` rows is cut in equal parts, however the mesh's dims
/// nest: what strategies with `chunked_only` need where dims of several sizes
/// are cut in proportion.
bool divides(int64_t size, const StrategyContext& context);
/// Whether no rank is left without rows by the chunk rule, whichever of the
/// mesh's other dims cut the same dim.
bool never_empty(
    int64_t size,
    const OpCall& call,
    const StrategyContext& context);

} // namespace weft::dtensor::rules
