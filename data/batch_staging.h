#pragma once

#include <c10/core/Device.h>

#include "data/batch_loader.h"

namespace weft::recipes {

/// The batch on `device`. To a CUDA device it goes through pinned memory,
/// behind what this thread's current stream has queued; the host does not wait,
/// and the pinned memory is used again once the copy is over.
Batch to_device(const Batch& batch, c10::Device device);

} // namespace weft::recipes
