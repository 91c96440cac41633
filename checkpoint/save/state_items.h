#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "checkpoint/save/save.h"
#include "checkpoint/save/save_plan.h"

namespace weft::checkpoint {

/// A tensor of a state under its key in the files.
struct StateItem {
  SaveItem item;
  at::ScalarType dtype;
  /// This rank's part.
  at::Tensor local;
  /// Set for DTensors, whose remembered copies are stale once it is written.
  at::Tensor whole;
};

/// All tensors of `dicts`, by key.
/// Throws: c10::ValueError for a tensor that is Partial, deferred or undefined,
/// or that lies on a mesh that does not hold every rank of the world once.
std::vector<StateItem> list_items(const StateDicts& dicts, const char* op);

/// What ranks must have alike, a line a tensor.
std::vector<std::string> describe_items(const std::vector<StateItem>& items);

/// The world that the tensors live in, or `given`; none: one rank alone.
std::optional<mesh::World> find_world(
    const std::vector<StateItem>& items,
    const std::optional<mesh::World>& given);

/// Every rank's answer, by rank.
/// Collective: all ranks; blocks.
std::vector<std::string> exchange_texts(
    const std::optional<mesh::World>& world,
    const std::string& text);

int64_t rank_of(const std::optional<mesh::World>& world);

} // namespace weft::checkpoint
