#pragma once

#include <cstdint>
#include <memory>

#include "data_parallel/comm_hooks/comm_hook.h"

namespace weft::ddp {

/// Sends gradients as 8-bit integers between the least and the greatest value
/// of the rank's bucket (zero included): scales and zero points are gathered,
/// then the integers, and every rank adds up what it got. A quarter of
/// float32's bytes a rank, but gathered: it pays for small groups. Values are
/// exact to half a 255th of the range, and at least 6e-8. A gradient that is
/// not finite makes the whole bucket NaN on all ranks.
/// Throws, when run: c10::ValueError for a bucket that is not of real floating
/// point.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/quantization_hooks.py.
std::shared_ptr<CommHook> quantization_pertensor_hook();

/// The same with a range for each `bucket_size` elements: finer, for large
/// buckets.
/// Throws: c10::ValueError if `bucket_size` is below 1.
std::shared_ptr<CommHook> quantization_perchannel_hook(
    int64_t bucket_size = 512);

} // namespace weft::ddp
