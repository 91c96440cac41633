#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save/held_shards.h"
#include "dtensor/spec/spec.h"

namespace weft::checkpoint {

/// A tensor of a state to save: what every rank knows of it.
struct SaveItem {
  std::string key;
  dtensor::DTensorSpec spec;
  std::vector<int64_t> sizes;
  int64_t item_bytes = 0;
};

/// One box of one tensor that a rank writes.
struct PlannedChunk {
  /// Index of its SaveItem.
  size_t item = 0;
  /// Which of the rank's boxes of this tensor it is, from 0.
  int64_t part = 0;
  HeldShard held;
};

/// Who writes what: each distinct box of each tensor once, by one of the ranks
/// that hold it, so that all write about the same number of bytes. A function
/// of its arguments alone: every rank makes the same plan, without
/// communication. A tensor on the mesh of no dims is held by all ranks.
class SavePlan {
 public:
  /// Time: the number of items times their replicas' choice, not the number of
  /// boxes. Throws: c10::ValueError as held_shards().
  SavePlan(std::vector<SaveItem> items, int64_t world_size);

  const std::vector<SaveItem>& items() const { return items_; }
  int64_t world_size() const { return world_size_; }

  /// What `rank` writes, by item. Empty boxes are left out.
  std::vector<PlannedChunk> chunks_of(int64_t rank) const;
  /// The rank that writes what `rank` holds of item `item`; who reads by this
  /// plan reads it and hands it to the others.
  int64_t writer_of(size_t item, int64_t rank) const;

 private:
  std::vector<SaveItem> items_;
  int64_t world_size_;
  /// By item, for each mesh dim: the coordinate that writes, or kOwn where the
  /// dim cuts the tensor.
  std::vector<std::vector<int64_t>> writers_;
};

} // namespace weft::checkpoint
