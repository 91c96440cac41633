#pragma once

#include <cstdint>
#include <memory>

#include "data_parallel/comm_hooks/comm_hook.h"

namespace weft::data_parallel {

/// Sends gradients as 8-bit integers between the minimum and maximum of the
/// rank's bucket (including 0): gathers scales and zero points, then the
/// integers, and every rank adds what it received. Sends a quarter of float32's
/// bytes per rank, but by all_gather, so it pays off for small groups. The
/// error of a value is at most 1/510 of the range, and at least 6e-8. A
/// gradient that is not finite makes the bucket NaN on all ranks. Throws, when
/// run: c10::ValueError for a bucket that is not real floating point.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/quantization_hooks.py.
std::shared_ptr<CommHook> quantization_pertensor_hook();

/// Like quantization_pertensor_hook(), with a range for each `bucket_size`
/// elements: more exact for large buckets.
/// Throws: c10::ValueError if `bucket_size` is below 1.
std::shared_ptr<CommHook> quantization_perchannel_hook(
    int64_t bucket_size = 512);

} // namespace weft::data_parallel
