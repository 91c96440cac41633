#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "dtensor/spec/spec.h"

namespace weft::checkpoint {

/// A box of a tensor that a rank holds, and its offset in the rank's part.
struct HeldShard {
  dtensor::LocalBox box;
  std::vector<int64_t> at;
};

/// Returns the boxes of a tensor that the rank at `coordinate` holds: normally
/// one; several for a StridedShard without its Shard, whose rows are not
/// adjacent; none if the rank's part is empty.
/// Throws: c10::ValueError if a placement does not fit the sizes.
std::vector<HeldShard> held_shards(
    const dtensor::DTensorSpec& spec,
    c10::IntArrayRef global_sizes,
    c10::IntArrayRef coordinate);

} // namespace weft::checkpoint
