#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "dtensor/spec/spec.h"

namespace weft::checkpoint {

/// A box of a tensor that a rank holds, and where it begins in the rank's part.
struct HeldShard {
  dtensor::LocalBox box;
  std::vector<int64_t> at;
};

/// What the rank at `coordinate` holds of a tensor, box by box: one, but for a
/// StridedShard that stands alone, whose rows are not adjacent; none if its
/// part is empty.
/// Throws: c10::ValueError if a placement cannot be fitted to the sizes.
std::vector<HeldShard> held_shards(
    const dtensor::DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate);

} // namespace weft::checkpoint
