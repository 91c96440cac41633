#include "dtensor/redistribute/cost_model.h"

#include <limits>

#include "dtensor/redistribute/redistribute.h"

// Note [Redistribution cost model]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The cost of a collective is what mesh/link_cost.h computes for the bytes of
// the whole group. A step without communication costs very little: enough to
// prefer fewer steps and smaller copies among plans that send the same. Costs
// depend on global sizes and the table of link costs only, never on this rank's
// coordinate, so all ranks of a mesh choose the same plan.

namespace weft::dtensor {
namespace {

constexpr double kStepUs = 0.05;
constexpr double kCopyUsPerByte = 1e-6;
// The cost of creating a Partial, which would postpone a reduction that was not
// asked for. Only an in-place add to a Partial sum, which has no other
// strategy, accepts it.
constexpr double kLastResort = 1e30;

mesh::Collective collective_of(StepKind kind) {
  switch (kind) {
    case StepKind::kAllReduce:
      return mesh::Collective::kAllReduce;
    case StepKind::kReduceScatter:
      return mesh::Collective::kReduceScatter;
    case StepKind::kAllToAll:
      return mesh::Collective::kAllToAll;
    default:
      return mesh::Collective::kAllGather;
  }
}

} // namespace

bool is_scaling(const Placement& from, const Placement& to) {
  return from.is_partial(ReduceOp::kAvg) && to.is_partial(ReduceOp::kSum);
}

std::string_view to_string(StepKind kind) {
  return kind == StepKind::kLocal ? "local"
                                  : mesh::to_string(collective_of(kind));
}

StepKind step_kind(const Placement& from, const Placement& to) {
  if (from.is_replicate() || to.is_partial()) {
    return StepKind::kLocal;
  }
  if (from.is_partial()) {
    return to.is_shard() ? StepKind::kReduceScatter : StepKind::kAllReduce;
  }
  return to.is_shard() ? StepKind::kAllToAll : StepKind::kAllGather;
}

bool is_impossible(const Placement& from, const Placement& to) {
  return to.is_partial() && !from.is_replicate() && !is_scaling(from, to) &&
         !(from.is_shard() && to.is_partial(ReduceOp::kSum));
}

bool commute(const Placement& a, const Placement& b) {
  const auto linear = [](const Placement& p) {
    return p.is_partial(ReduceOp::kSum) || p.is_partial(ReduceOp::kAvg);
  };
  return a == b || (linear(a) && linear(b));
}

double step_us(
    StepKind kind,
    int64_t ranks,
    double bytes,
    const mesh::LinkCost& link) {
  const double local = kStepUs + kCopyUsPerByte * bytes;
  return kind == StepKind::kLocal
             ? local
             : local +
                   mesh::collective_us(collective_of(kind), ranks, bytes, link);
}

double received_bytes(StepKind kind, double ranks, double bytes) {
  const double moved = bytes * (ranks - 1) / ranks;
  switch (kind) {
    case StepKind::kLocal:
      return 0;
    case StepKind::kAllReduce:
      return 2 * moved;
    default:
      return moved;
  }
}

double redistribute_cost(
    const Placement& from,
    const Placement& to,
    double bytes,
    int64_t shards,
    const mesh::LinkCost& link) {
  if (from == to) {
    return 0;
  }
  const double part = bytes / static_cast<double>(shards);
  if (to.is_partial() && !is_scaling(from, to)) {
    if (!to.is_partial(ReduceOp::kSum)) {
      return std::numeric_limits<double>::infinity();
    }
    return from.is_partial()
               ? step_us(StepKind::kAllReduce, shards, bytes, link) +
                     kLastResort
               : kLastResort;
  }
  const auto kind = step_kind(from, to);
  const bool on_parts = kind == StepKind::kAllToAll || to.is_shard();
  return step_us(
      kind,
      shards,
      on_parts && kind != StepKind::kReduceScatter ? part : bytes,
      link);
}

} // namespace weft::dtensor
