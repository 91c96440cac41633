#pragma once

#include <cstdint>

#include "dtensor/spec/placement.h"
#include "mesh/link_cost.h"

namespace weft::dtensor {

/// How a step of a redistribution moves values.
enum class StepKind : uint8_t {
  /// Nothing leaves a rank.
  kLocal,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
};

/// "all_gather", "local".
std::string_view to_string(StepKind kind);

/// How one mesh dim goes from one placement to another in one step.
/// `from` to `to` is such a step unless is_impossible().
StepKind step_kind(const Placement& from, const Placement& to);

/// Whether no single step leads from the one to the other: to a pending
/// reduction but from R, S to P(sum), and P(avg) to P(sum).
bool is_impossible(const Placement& from, const Placement& to);

/// Whether the step is from P(avg) to P(sum): an average is a sum of terms that
/// each rank divides by their number.
bool is_scaling(const Placement& from, const Placement& to);

/// Whether the order of two pending reductions does not matter: sums and
/// averages may be taken in any order, others of one kind too.
bool commute(const Placement& a, const Placement& b);

/// Microseconds of one step over `ranks` ranks. `bytes`: what the ranks hold
/// of the tensor together; an all_to_all's is the larger of what a rank holds
/// before and after.
double
step_us(StepKind kind, int64_t ranks, double bytes, const mesh::LinkCost& link);

/// Bytes that the busiest of `ranks` ranks receives in one step; `bytes` as
/// step_us() has it.
double received_bytes(StepKind kind, double ranks, double bytes);

} // namespace weft::dtensor
