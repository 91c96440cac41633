#pragma once

#include <cstdint>

#include "dtensor/spec/placement.h"
#include "mesh/link_cost.h"

namespace weft::dtensor {

/// The communication of one step of a redistribution.
enum class StepKind : uint8_t {
  /// No communication.
  kLocal,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
};

/// Returns "all_gather", "local", ...
std::string_view to_string(StepKind kind);

/// Returns the kind of step that changes one mesh dim's placement. Must not be
/// called if is_impossible().
StepKind step_kind(const Placement& from, const Placement& to);

/// Returns true if no single step changes one placement to the other: to a
/// Partial, except from R or from S to P(sum), or from P(avg) to P(sum).
bool is_impossible(const Placement& from, const Placement& to);

/// Returns true if the step is from P(avg) to P(sum): each rank divides its
/// term by the number of terms.
bool is_scaling(const Placement& from, const Placement& to);

/// Returns true if two pending reductions commute: sums and averages with each
/// other, and any reduction with its own kind.
bool commute(const Placement& a, const Placement& b);

/// Returns the time of one step over `ranks` ranks in microseconds. `bytes` is
/// the tensor's size on all ranks together; for an all_to_all, the larger of
/// what one rank holds before and after.
double
step_us(StepKind kind, int64_t ranks, double bytes, const mesh::LinkCost& link);

/// Returns the bytes that the busiest of `ranks` ranks receives in one step.
/// `bytes` is as in step_us().
double received_bytes(StepKind kind, double ranks, double bytes);

} // namespace weft::dtensor
