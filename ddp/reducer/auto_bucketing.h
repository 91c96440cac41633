#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Device.h>

#include "mesh/communicator/communicator.h"

namespace weft::ddp {

/// When a gradient was ready in a backward without reductions, and its size.
struct GradientTiming {
  /// From the begin of backward.
  int64_t ready_ns = 0;
  int64_t bytes = 0;
};

/// What a reduction takes: `start_ns` however small, and `ns_per_byte`.
struct ReductionCost {
  double start_ns = 0;
  double ns_per_byte = 0;
};

/// When the last reduction would end if gradients, in this order, were gathered
/// in buckets of at most `cap` bytes and buckets reduced one after the other,
/// each not before its last gradient is ready. Pure. Unit: ns from the begin of
/// backward.
double simulate_backward(
    const std::vector<GradientTiming>& gradients,
    const ReductionCost& cost,
    int64_t cap);

/// The cap, of the powers of two from 64 KiB on, with which backward ends
/// first; of several the largest. Pure. Unit: bytes.
int64_t choose_cap(
    const std::vector<GradientTiming>& gradients,
    const ReductionCost& cost);

/// Measures what reductions cost and adopts the first rank's choice.
/// Collective: all ranks of `group`; blocks.
int64_t agree_on_cap(
    const std::vector<GradientTiming>& gradients,
    mesh::Communicator& group,
    c10::Device device);

} // namespace weft::ddp
