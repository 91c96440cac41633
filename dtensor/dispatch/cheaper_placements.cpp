#include "dtensor/dispatch/cheaper_placements.h"

#include <cstdint>
#include <optional>

#include <c10/util/Exception.h>

#include "dtensor/dispatch/op_plan.h"
#include "dtensor/redistribute/redistribute_plan.h"

namespace weft::dtensor {
namespace {

// Returns the bytes that the busiest rank receives, summed over the plan's
// redistributions.
double moved_bytes(const OpCall& call, const OpPlan& plan) {
  double bytes = 0;
  size_t next = 0;
  for (const auto& input : call.tensors) {
    if (!input.spec) {
      continue;
    }
    const auto& planned = plan.inputs.at(next++);
    if (planned.to) {
      bytes += redistributed_bytes(
          *input.spec,
          DTensorSpec(call.mesh(), planned.to),
          input.tensor.sizes(),
          static_cast<int64_t>(input.tensor.element_size()));
    }
  }
  return bytes;
}

struct Alternative {
  size_t input = 0;
  DTensorSpec spec;
  double bytes = 0;
};

// Returns the bytes that the op would communicate if one input had `spec`, or
// nullopt if the op refuses that.
std::optional<double>
bytes_with(const OpCall& call, size_t input, const DTensorSpec& spec) {
  auto other = call;
  other.tensors[input].spec = spec;
  try {
    return moved_bytes(other, make_op_plan(other));
  } catch (const c10::Error&) {
    return std::nullopt; // E.g. an in-place op cannot write to such a tensor.
  }
}

void try_placements(
    const OpCall& call,
    size_t input,
    std::optional<Alternative>& best) {
  const auto& tensor = call.tensors[input];
  Placements candidates;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    candidates.push_back(Shard(d));
  }
  candidates.push_back(Replicate());
  for (int64_t i = 0; i < tensor.spec->mesh_ndim(); ++i) {
    for (const auto& candidate : candidates) {
      if (candidate == tensor.spec->placement(i)) {
        continue;
      }
      const auto spec = tensor.spec->with(i, candidate);
      const auto bytes = bytes_with(call, input, spec);
      if (bytes && (!best || *bytes < best->bytes)) {
        best = Alternative{input, spec, *bytes};
      }
    }
  }
}

} // namespace

std::string cheaper_placements(const OpCall& call) {
  const double now = moved_bytes(call, make_op_plan(call));
  if (now == 0) {
    return "";
  }
  std::optional<Alternative> best;
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (call.tensors[i].spec) {
      try_placements(call, i, best);
    }
  }
  if (!best || best->bytes >= now) {
    return "";
  }
  return c10::str(
      "input ",
      best->input + 1,
      " ",
      call.tensors[best->input].sizes(),
      " as ",
      to_string(best->spec.placements()),
      ", ",
      static_cast<int64_t>(best->bytes),
      " bytes to each rank instead of ",
      static_cast<int64_t>(now));
}

} // namespace weft::dtensor
