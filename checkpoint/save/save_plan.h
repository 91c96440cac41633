#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save/held_shards.h"
#include "dtensor/spec/spec.h"

namespace weft::checkpoint {

/// A tensor of a state to save, as known to every rank.
struct SaveItem {
  std::string key;
  dtensor::DTensorSpec spec;
  std::vector<int64_t> sizes;
  int64_t item_bytes = 0;
};

/// One box of one tensor that a rank writes.
struct PlannedChunk {
  /// The index of its SaveItem.
  size_t item = 0;
  /// The index among the rank's boxes of this tensor.
  int64_t part = 0;
  HeldShard held;
};

/// Assigns each distinct box of each tensor to one of the ranks that hold it,
/// so that all ranks write about the same number of bytes. Depends only on its
/// arguments: every rank computes the same plan without communication. A tensor
/// on the mesh without dims is held by all ranks.
class SavePlan {
 public:
  /// The time grows with the number of items and of their replicas, not with
  /// the number of boxes.
  /// Throws: c10::ValueError like held_shards().
  SavePlan(std::vector<SaveItem> items, int64_t world_size);

  const std::vector<SaveItem>& items() const { return items_; }
  int64_t world_size() const { return world_size_; }

  /// Returns the boxes that `rank` writes, ordered by item. Empty boxes are
  /// omitted.
  std::vector<PlannedChunk> chunks_of(int64_t rank) const;
  /// Returns the rank that writes the part of item `item` that `rank` holds. A
  /// load by this plan has that rank read the part and broadcast it to the
  /// replicas.
  int64_t writer_of(size_t item, int64_t rank) const;

 private:
  std::vector<SaveItem> items_;
  int64_t world_size_;
  /// The coordinate that writes, by item and mesh dim; kOwn if the mesh dim
  /// shards the tensor.
  std::vector<std::vector<int64_t>> writers_;
};

} // namespace weft::checkpoint
