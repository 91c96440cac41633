#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Device.h>

#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// The time at which a gradient was ready in a backward without reductions, and
/// its size.
struct GradientTiming {
  /// The time since the start of backward.
  int64_t ready_ns = 0;
  int64_t bytes = 0;
};

/// The time of a reduction: `start_ns` plus `ns_per_byte` for each byte.
struct ReductionCost {
  double start_ns = 0;
  double ns_per_byte = 0;
};

/// Returns when the last reduction would end if gradients, in this order, were
/// collected in buckets of at most `cap` bytes, and buckets were reduced one at
/// a time after their last gradient is ready. Deterministic.
/// Unit: ns since the start of backward.
double simulate_backward(
    const std::vector<GradientTiming>& gradients,
    const ReductionCost& cost,
    int64_t cap);

/// Returns the cap, a power of two of at least 64 KiB, for which backward ends
/// first; the largest if several do. Deterministic.
/// Unit: bytes.
int64_t choose_cap(
    const std::vector<GradientTiming>& gradients,
    const ReductionCost& cost);

/// Measures the cost of reductions and returns the first rank's choice.
/// Collective: all ranks of `group`; blocks.
int64_t agree_on_cap(
    const std::vector<GradientTiming>& gradients,
    mesh::Communicator& group,
    c10::Device device);

} // namespace weft::ddp
