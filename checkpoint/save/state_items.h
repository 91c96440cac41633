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
  /// The DTensor, or undefined for a plain tensor. A write to `local` makes its
  /// cached redistributions stale.
  at::Tensor whole;
};

/// Returns all tensors of `dicts`, by key.
/// Throws: c10::ValueError if a tensor is Partial, deferred or undefined, or on
/// a mesh that does not contain every rank of the world once.
std::vector<StateItem> list_items(const StateDicts& dicts, const char* op);

/// Returns a description of what must be identical on all ranks, one line per
/// tensor.
std::vector<std::string> describe_items(const std::vector<StateItem>& items);

/// Returns `given` if it is set, otherwise the world of the tensors' mesh.
/// Empty means that this rank is alone.
std::optional<mesh::World> find_world(
    const std::vector<StateItem>& items,
    const std::optional<mesh::World>& given);

/// Returns every rank's text, by rank.
/// Collective: all ranks of `world`; blocks.
std::vector<std::string> exchange_texts(
    const std::optional<mesh::World>& world,
    const std::string& text);

int64_t rank_of(const std::optional<mesh::World>& world);

} // namespace weft::checkpoint
