#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/spec.h"

namespace weft::checkpoint {

/// A tensor of a state to save: what every rank knows of it.
struct SaveItem {
  std::string key;
  dtensor::DTensorSpec spec;
  std::vector<int64_t> sizes;
  int64_t item_bytes = 0;
};

/// One box of one tensor and the rank of the world that writes it.
struct PlannedChunk {
  /// Index of its SaveItem.
  size_t item = 0;
  dtensor::LocalBox box;
  int64_t writer = 0;
};

/// Who writes what: each distinct box of each tensor once, by one of the ranks
/// that hold it, so that all write about the same number of bytes. Empty boxes
/// are left out. A function of its arguments alone: every rank computes the
/// same plan, without communication. A tensor on the mesh of no dims is held by
/// all `world_size` ranks.
std::vector<PlannedChunk> plan_save(
    const std::vector<SaveItem>& items,
    int64_t world_size);

} // namespace weft::checkpoint
